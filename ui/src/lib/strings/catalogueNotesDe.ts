// German translations of the catalogue's notes, by their English text. Others are shown in English.

export const catalogueNotesDe: Readonly<Record<string, string>> = {
  'Draft for every larger Qwen3.': 'Draft für jedes größere Qwen3.',
  'Draft for the larger dense Qwen3.5.': 'Draft für die größeren dichten Qwen3.5.',
  'Text only in Hunch.': 'In Hunch nur Text.',
  'Its KV cache is small, so a long context fits. Text only in Hunch.':
    'Sein KV-Cache ist klein, daher passt ein langer Kontext. In Hunch nur Text.',
  'Much larger than its draft. Text only in Hunch.': 'Viel größer als sein Draft. In Hunch nur Text.',
  'A mixture of experts: use a method without a draft model.': 'Ein Mixture-of-Experts-Modell: Nimm eine Methode ohne Draft-Modell.',
  'Small general model in 8 bits. Its draft is not much smaller, so speedups are modest.':
    'Kleines, vielseitiges Modell in 8 Bit. Sein Draft ist nicht viel kleiner, die Beschleunigung also gering.',
  'Good all-rounder for 16 GB.': 'Guter Allrounder für 16 GB.',
  'The usual pair for 16 GB. More memory allows a longer context.':
    'Das übliche Paar für 16 GB. Mehr Speicher erlaubt einen längeren Kontext.',
  'Much larger than its draft, so drafting pays.': 'Viel größer als sein Draft, Drafting lohnt sich also.',
  '30 times as many weights as its draft.': '30-mal so viele Gewichte wie sein Draft.',
  'A mixture of experts: it reads few of its weights for a token, and more for a draft of several. Use a method without a draft model.':
    'Ein Mixture-of-Experts-Modell: Es liest für ein Token wenige seiner Gewichte, für einen Draft aus mehreren mehr. Nimm eine Methode ohne Draft-Modell.',
  'Draft for every larger Gemma 3.': 'Draft für jedes größere Gemma 3.',
  'Many languages. Text only in Hunch. Accept its terms before use.':
    'Viele Sprachen. In Hunch nur Text. Vor der Nutzung den Bedingungen zustimmen.',
  'Draft for Gemma 4 31B, and a small model to chat with. Text only in Hunch.':
    'Draft für Gemma 4 31B und ein kleines Modell zum Chatten. In Hunch nur Text.',
  'Many languages, and a small KV cache. Text only in Hunch. Use a method without a draft model.':
    'Viele Sprachen, kleiner KV-Cache. In Hunch nur Text. Nimm eine Methode ohne Draft-Modell.',
  'Its KV cache is small, so a long context fits. Use a method without a draft model.':
    'Kleiner KV-Cache, also passt ein langer Kontext. Nimm eine Methode ohne Draft-Modell.',
  'Draft for the larger Granite 3.3.': 'Draft für das größere Granite 3.3.',
  'Its draft has a third of its weights, so speedups are modest.':
    'Sein Draft hat ein Drittel seiner Gewichte, die Beschleunigung ist also gering.',
  'Draft for Ministral 3 14B, and a small model to chat with.': 'Draft für Ministral 3 14B und ein kleines Modell zum Chatten.',
  'The 3B model is too large a draft for it. Use a method without a draft model.':
    'Das 3B-Modell ist als Draft zu groß. Nimm eine Methode ohne Draft-Modell.',
  'Its draft has a quarter of its weights, so speedups are modest.':
    'Sein Draft hat ein Viertel seiner Gewichte, die Beschleunigung ist also gering.',
  'Draft for the larger OLMo 2.': 'Draft für das größere OLMo 2.',
  'Its data and training code are public too. Its KV cache is large.':
    'Auch Daten und Trainingscode sind öffentlich. Sein KV-Cache ist groß.',
  'Draft for EXAONE 4.0 32B. The licence allows research only, no commercial use.':
    'Draft für EXAONE 4.0 32B. Die Lizenz erlaubt nur Forschung, keine kommerzielle Nutzung.',
  'English, Korean and Spanish. The licence allows research only, no commercial use.':
    'Englisch, Koreanisch und Spanisch. Die Lizenz erlaubt nur Forschung, keine kommerzielle Nutzung.',
  'Draft for the larger distilled Qwen models.': 'Draft für die größeren destillierten Qwen-Modelle.',
  'Reasons before it answers, in long and easily drafted text.': 'Denkt vor der Antwort nach, in langem und leicht vorhersagbarem Text.',
  'Draft for every larger Qwen2.5.': 'Draft für jedes größere Qwen2.5.',
  'Small, with a small KV cache.': 'Klein, mit kleinem KV-Cache.',
  'Best of its family for 8 GB. The licence allows research only, no commercial use.':
    'Das beste seiner Familie für 8 GB. Die Lizenz erlaubt nur Forschung, keine kommerzielle Nutzung.',
  'Leaves room for a long context in 16 GB.': 'Lässt in 16 GB Platz für einen langen Kontext.',
  'The pair with the best published speedups on Apple Silicon.':
    'Das Paar mit den höchsten veröffentlichten Beschleunigungen auf Apple Silicon.',
  'Draft for every larger Qwen2.5 Coder, and for Qwen2.5 on code.': 'Draft für jeden größeren Qwen2.5 Coder und für Qwen2.5 bei Code.',
  'Writes short programs. Fits every machine.': 'Schreibt kurze Programme. Passt auf jeden Rechner.',
  'Code is easy to draft. Try this pair first for speed.': 'Code lässt sich leicht vorhersagen. Für Tempo das Paar zum Ausprobieren.',
  'Code is easy to draft, and the draft is much smaller.': 'Code lässt sich leicht vorhersagen, und der Draft ist viel kleiner.',
  'The largest of its family.': 'Das größte seiner Familie.',
  'Draft for every larger Llama 3.1, 3.2 and 3.3.': 'Draft für jedes größere Llama 3.1, 3.2 und 3.3.',
  'The largest of its family for 8 GB.': 'Das größte seiner Familie für 8 GB.',
  'Widely benchmarked, so good for comparisons.': 'Anderswo oft gemessen, also gut für Vergleiche.',
  'The largest dense model here. With its draft it fits 64 GB only up to about 4,000 tokens of context.':
    'Das größte dichte Modell hier. Mit seinem Draft passt es nur bis etwa 4.000 Tokens Kontext in 64 GB.',
  'Draft for the larger SmolLM2. Hunch’s starter model can draft for them too.':
    'Draft für die größeren SmolLM2. Das Startmodell von Hunch kann das auch.',
  'To try Hunch: answers are simple. A head for it comes with Hunch.':
    'Zum Ausprobieren: Die Antworten sind einfach. Ein Head dafür ist in Hunch enthalten.',
  'Small, open, English only.': 'Klein, offen, nur Englisch.',
  'No smaller model in its family. Use a method without a draft model.':
    'Kein kleineres Modell in seiner Familie. Nimm eine Methode ohne Draft-Modell.',
  'Its vocabulary differs from Mistral 7B and Small. Use a method without a draft model.':
    'Anderes Vokabular als Mistral 7B und Small. Nimm eine Methode ohne Draft-Modell.',
  'Also fits 32 GB. Its vocabulary differs from Mistral 7B and Nemo. Use a method without a draft model.':
    'Passt auch in 32 GB. Anderes Vokabular als Mistral 7B und Nemo. Nimm eine Methode ohne Draft-Modell.',
  'A mixture of experts for code. Code repeats itself: use a method that drafts from the text.':
    'Ein Mixture-of-Experts-Modell für Code. Code wiederholt sich: Nimm eine Methode, die aus dem Text vorhersagt.',
  'A mixture of experts with a small KV cache. Use a method without a draft model.':
    'Ein Mixture-of-Experts-Modell mit kleinem KV-Cache. Nimm eine Methode ohne Draft-Modell.',
  'A mixture of experts: use a method without a draft model. Text only in Hunch.':
    'Ein Mixture-of-Experts-Modell: Nimm eine Methode ohne Draft-Modell. In Hunch nur Text.',
  'A mixture of experts that reasons before it answers. Use a method without a draft model.':
    'Ein Mixture-of-Experts-Modell, das vor der Antwort nachdenkt. Nimm eine Methode ohne Draft-Modell.',
  'A mixture of experts. It drafts with a layer of its own, without a draft model.':
    'Ein Mixture-of-Experts-Modell. Es sagt mit einer eigenen Schicht vorher, ohne Draft-Modell.',
  'Draft for Granite 4.1 30B, and a small model to chat with.': 'Draft für Granite 4.1 30B und ein kleines Modell zum Chatten.',
  'Its data and training code are public too. Its KV cache is large. Use a method without a draft model.':
    'Auch Daten und Trainingscode sind öffentlich. Sein KV-Cache ist groß. Nimm eine Methode ohne Draft-Modell.',
  'Reasons before it answers, in long and easily drafted text. Use a method without a draft model.':
    'Denkt vor der Antwort nach, in langem und leicht vorhersagbarem Text. Nimm eine Methode ohne Draft-Modell.',
  'Draft for LFM2 1.2B and 2.6B. The licence limits commercial use.':
    'Draft für LFM2 1.2B und 2.6B. Die Lizenz schränkt die kommerzielle Nutzung ein.',
  'Small, with a small KV cache. Use a method without a draft model. The licence limits commercial use.':
    'Klein, mit kleinem KV-Cache. Nimm eine Methode ohne Draft-Modell. Die Lizenz schränkt die kommerzielle Nutzung ein.',
  'Its draft has a third of its weights, so speedups are modest. The licence limits commercial use.':
    'Sein Draft hat ein Drittel seiner Gewichte, die Beschleunigung ist also gering. Die Lizenz schränkt die kommerzielle Nutzung ein.',
  'Much larger than its draft, with a small KV cache. The licence limits commercial use.':
    'Viel größer als sein Draft, mit kleinem KV-Cache. Die Lizenz schränkt die kommerzielle Nutzung ein.',
  'A mixture of experts: use a method without a draft model. The licence limits commercial use.':
    'Ein Mixture-of-Experts-Modell: Nimm eine Methode ohne Draft-Modell. Die Lizenz schränkt die kommerzielle Nutzung ein.',
};
