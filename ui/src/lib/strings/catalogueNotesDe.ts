// The notes of the catalogue in German, by the English that the catalogue itself has: one that is changed there is
// told in English until it is translated anew.

export const catalogueNotesDe: Readonly<Record<string, string>> = {
  'Drafts for every larger Qwen3.':
    'Draft für jedes größere Qwen3.',
  'Small and general, in 8 bits. The draft is not much smaller, so gains are modest.':
    'Klein und vielseitig, in 8 Bit. Der Draft ist nicht viel kleiner, der Gewinn also mäßig.',
  'A good all-rounder for a machine with 16 GB.':
    'Ein guter Allrounder für einen Rechner mit 16 GB.',
  'The usual pair on a machine with 16 GB; more memory lets the context grow.':
    'Das übliche Paar auf einem Rechner mit 16 GB; mehr Speicher lässt den Kontext wachsen.',
  'Large beside its draft, which is where drafting pays.':
    'Groß neben seinem Draft, und da lohnt sich Drafting.',
  'Thirty times the weights of its draft.':
    'Dreißigmal so viele Gewichte wie sein Draft.',
  'Drafts for every larger Qwen2.5.':
    'Draft für jedes größere Qwen2.5.',
  'Small, with a cache that takes little memory.':
    'Klein, mit einem Cache, der wenig Speicher braucht.',
  'The best of its family for 8 GB; its licence allows research, not business.':
    'Das beste seiner Familie für 8 GB; seine Lizenz erlaubt Forschung, keine Geschäfte.',
  'Leaves room for a long context on a machine with 16 GB.':
    'Lässt auf einem Rechner mit 16 GB Platz für einen langen Kontext.',
  'The pair with the best speedups published for Apple Silicon.':
    'Das Paar mit den höchsten veröffentlichten Beschleunigungen auf Apple Silicon.',
  'Drafts for every larger Qwen2.5 Coder, and for Qwen2.5 where it writes programs.':
    'Draft für jeden größeren Qwen2.5 Coder, und für Qwen2.5, wo es Programme schreibt.',
  'Writes short programs; fits every machine.':
    'Schreibt kurze Programme; passt auf jeden Rechner.',
  'Programs are easy to draft: the pair to try first for speed.':
    'Programme lassen sich leicht vorausraten: für Tempo das Paar, das man zuerst probiert.',
  'Programs are easy to draft, and the draft is small beside it.':
    'Programme lassen sich leicht vorausraten, und der Draft ist klein daneben.',
  'The largest of its family.':
    'Das größte seiner Familie.',
  'Drafts for every larger Llama 3.1, 3.2 and 3.3.':
    'Draft für jedes größere Llama 3.1, 3.2 und 3.3.',
  'The largest of its family for 8 GB.':
    'Das größte seiner Familie für 8 GB.',
  'Much measured elsewhere, so good for comparing.':
    'Anderswo viel gemessen, also gut zum Vergleichen.',
  'The largest here. With its draft it fits 64 GB at a context of about 4,000 tokens only.':
    'Das größte hier. Mit seinem Draft passt es nur bei einem Kontext von etwa 4.000 Tokens in 64 GB.',
  'Drafts for the larger SmolLM2. The model that Hunch starts with drafts for them as well.':
    'Draft für die größeren SmolLM2. Das Modell, mit dem Hunch beginnt, ist auch einer für sie.',
  'Small, open and English.':
    'Klein, offen und englisch.',
  'No smaller model of its family: use the methods that need no draft model.':
    'In seiner Familie gibt es kein kleineres Modell: Nimm die Methoden, die kein Draft-Modell brauchen.',
  'Another vocabulary than Mistral 7B and Mistral Small: use the methods that need no draft model.':
    'Ein anderes Vokabular als Mistral 7B und Mistral Small: Nimm die Methoden, die kein Draft-Modell brauchen.',
  'Fits 32 GB as well. Another vocabulary than Mistral 7B and Nemo: use the methods that need no draft model.':
    'Passt auch in 32 GB. Ein anderes Vokabular als Mistral 7B und Nemo: Nimm die Methoden, die kein Draft-Modell brauchen.',
};
