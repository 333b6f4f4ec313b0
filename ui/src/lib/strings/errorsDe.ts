// The text of errors in German: what happened, what is safe, what to do.

import type { ErrorCatalogue, RefusalCatalogue } from './keys';

export const errorsDe: ErrorCatalogue = {
  invalid_request: {
    title: 'Diese Anfrage lässt sich nicht ausführen',
  },
  model_not_found: {
    title: 'Modell nicht gefunden',
    body: ({ name }) => `Es gibt kein Modell namens „${name}“.`,
    advice: 'Wähle ein anderes in der Bibliothek.',
  },
  invalid_model_file: {
    title: 'Die Modelldatei ist nicht verwendbar',
    body: ({ path }) => `${path} ist kein gültiges GGUF-Modell. Die Datei ist unverändert.`,
    advice: 'Lade sie neu herunter oder wähle eine andere.',
  },
  unsupported_model: {
    title: 'Dieses Modell wird nicht unterstützt',
    body: ({ path }) => `Hunch kann ${path} nicht ausführen. Die Datei ist unverändert.`,
    advice: 'Wähle ein anderes Modell, zum Beispiel aus dem Katalog der Bibliothek.',
  },
  vocabulary_mismatch: {
    title: 'Der Draft passt nicht zum Target',
    body: () => 'Draft und Target haben verschiedene Vokabulare.',
    advice: 'Wähle einen Draft derselben Modellfamilie oder eine Methode, die keinen braucht.',
  },
  context_overflow: {
    title: 'Die Unterhaltung ist zu lang',
    body: ({ prompt, context }) => `Der Prompt hat ${prompt} Tokens, der Kontext fasst nur ${context}. Die Unterhaltung bleibt erhalten.`,
    advice: 'Kürze die Frage oder die Anweisungen, oder lade das Modell mit größerem Kontext.',
  },
  not_text: {
    title: 'Keine Textdatei',
    body: ({ name }) => `„${name}“ ist kein UTF-8-Text und wurde nicht angehängt.`,
    advice: 'Wähle eine Textdatei oder speichere sie als UTF-8.',
  },
  file_too_large: {
    title: 'Die Datei ist zu groß',
    body: ({ name, bytes, most }) => `„${name}“ hat ${bytes}, anhängen lassen sich Dateien bis ${most}.`,
    advice: 'Hänge einen Teil davon an.',
  },
  file_over_context: {
    title: 'Die Datei ist zu lang für das Modell',
    body: ({ name, tokens, context }) => `„${name}“ hat ${tokens} Tokens, der Kontext fasst nur ${context}.`,
    advice: 'Hänge einen Teil davon an oder lade das Modell mit größerem Kontext.',
  },
  out_of_memory: {
    title: 'Der Speicher reicht nicht',
    body: () => 'Dafür ist nicht genug Speicher frei.',
    advice: 'Wähle ein kleineres Modell, eine kleinere Quantisierung oder weniger Kontext.',
  },
  io: {
    title: 'Eine Datei ließ sich nicht lesen oder schreiben',
    body: ({ path }) => `Betroffen ist ${path}.`,
    advice: 'Prüfe, ob die Datei existiert und du darauf zugreifen darfst. Versuche es dann erneut.',
  },
  store: {
    title: 'Unterhaltungen lassen sich nicht speichern',
    body: () => 'Ihre Datei lässt sich nicht lesen oder schreiben. Ihr Inhalt ist unverändert.',
    advice: 'Schließe andere Fenster von Hunch oder prüfe, ob die Festplatte beschreibbar ist.',
  },
  no_model: {
    title: 'Es ist kein Modell geladen',
    body: () => 'Ohne Modell gibt es keine Antwort.',
    advice: 'Öffne zuerst ein Modell.',
  },
  busy: {
    title: 'Die Engine ist beschäftigt',
    body: () => 'Eine Antwort oder eine Messung läuft.',
    advice: 'Stoppe sie oder warte, bis sie fertig ist.',
  },
  stopped: {
    title: 'Das Laden wurde abgebrochen',
    body: () => 'Vorher geladene Modelle sind noch im Speicher.',
  },
  device: {
    title: 'Die Berechnung ist fehlgeschlagen',
    body: ({ device }) => `Die Berechnung auf „${device}“ ist fehlgeschlagen. Die Unterhaltung bleibt erhalten.`,
    advice: 'Starte Hunch neu und versuche es noch einmal.',
  },
  server: {
    title: 'Der Server hat nicht geantwortet',
    body: ({ address }) => `Keine Antwort von ${address}. Bisher empfangener Text bleibt erhalten.`,
    advice: 'Prüfe, ob der Server läuft, seine Adresse und seinen Schlüssel. Versuche es dann erneut.',
  },
  hub_unreachable: {
    title: 'Der Hub ist nicht erreichbar',
    body: ({ endpoint }) => `Keine Verbindung zu ${endpoint}. Heruntergeladene Dateien bleiben erhalten.`,
    advice: 'Prüfe das Netzwerk und, falls gesetzt, HF_ENDPOINT und HTTPS_PROXY. Versuche es dann erneut.',
  },
  hub_not_found: {
    title: 'Auf dem Hub nicht gefunden',
    body: ({ what }) => `Auf dem Hub nicht gefunden: ${what}.`,
  },
  hub_gated: {
    title: 'Die Bedingungen müssen zuerst akzeptiert werden',
    body: ({ repository }) => `${repository} ist nur verfügbar, wenn du den Bedingungen zustimmst.`,
  },
  hub_token: {
    title: 'Das Zugriffstoken wurde abgelehnt',
  },
  wrong_checksum: {
    title: 'Der Download ist beschädigt',
    body: ({ file, expected, found, path }) =>
      `Die Prüfsumme von ${file} ist ${found}, der Hub nennt ${expected}. Die Datei liegt als ${path} in Quarantäne.`,
    advice: 'Lade sie erneut herunter. Wiederholt sich das, prüfe Proxy und Festplatte.',
  },
  catalogue_mismatch: {
    title: 'Die Datei auf dem Hub hat sich geändert',
    body: ({ file, expected, found }) =>
      `${file} stimmt nicht mehr mit dem Katalog überein: Die Prüfsumme beginnt mit ${found} statt ${expected}. Nichts wurde heruntergeladen.`,
    advice: 'Um die neue Datei zu laden, suche das Repository mit seinem Namen und wähle sie dort aus.',
  },
  disk_full: {
    title: 'Die Festplatte ist voll',
    body: ({ folder, missing, reserved }) =>
      `Auf der Festplatte von ${folder} fehlen ${missing}${reserved === '' ? '' : ` (andere Downloads brauchen ${reserved})`}. Heruntergeladene Dateien bleiben erhalten.`,
    advice: 'Schaffe Platz und setze den Download dann fort.',
  },
  download_unreadable: {
    title: 'Ein angefangener Download lässt sich nicht fortsetzen',
    body: ({ folder, bytes }) =>
      `Sein Zustand lässt sich nicht lesen. ${bytes} davon liegen in ${folder}. Andere Dateien sind nicht betroffen.`,
    advice: 'Verwirf ihn, um den Platz freizugeben, und lade das Modell dann neu herunter.',
  },
  download_elsewhere: {
    title: 'Hunch lädt das bereits in einem anderen Fenster',
    body: ({ name }) => `${name} wird von einem anderen laufenden Hunch heruntergeladen.`,
    advice: 'Warte darauf, oder pausiere es dort und setze es hier fort.',
  },
  update_unreachable: {
    title: 'Updates sind nicht abrufbar',
    body: () => 'Die Liste der Versionen oder das Update ließ sich nicht laden. Nichts wurde geändert.',
    advice: 'Prüfe das Netzwerk, und HTTPS_PROXY, falls gesetzt. Versuche es dann erneut.',
  },
  update_rejected: {
    title: 'Das Update wurde abgelehnt',
    body: ({ version }) =>
      `Das Update auf ${version} ist nicht als diese Version von Hunch signiert. Es wurde verworfen, und nichts wurde geändert.`,
    advice: 'Versuche es später erneut. Wird es wieder abgelehnt, melde das bitte.',
  },
  update_not_installed: {
    title: 'Das Update wurde nicht installiert',
    body: ({ version }) => `Das Update auf ${version} ließ sich nicht installieren. Unterhaltungen und Modelle sind sicher.`,
    advice:
      'Prüfe, ob du die App ersetzen darfst und ob sie nicht auf einem Disk-Image liegt. Versuche es dann erneut oder installiere die neue Version von Hand.',
  },
  internal: {
    title: 'In Hunch ist etwas schiefgegangen',
    body: () => 'Das ist ein Fehler in Hunch. Die Unterhaltung bleibt erhalten.',
    advice: 'Versuche es erneut. Passiert es wieder, melde es bitte.',
  },
};

/** Refused requests, by reason. */
export const refusalsDe: RefusalCatalogue = {
  no_such_conversation: {
    title: 'Diese Unterhaltung gibt es nicht mehr',
    body: () => 'Die Unterhaltung wurde gelöscht.',
    advice: 'Wähle eine andere.',
  },
  no_such_message: {
    title: 'Diese Nachricht gibt es nicht mehr',
    body: () => 'Die Nachricht wurde gelöscht.',
    advice: 'Wähle eine andere.',
  },
  no_such_comparison: {
    title: 'Diesen Vergleich gibt es nicht mehr',
    body: () => 'Der Vergleich wurde gelöscht.',
    advice: 'Wähle einen anderen.',
  },
  other_writer: {
    title: 'Die Antwort ist von einem anderen Modell',
    body: ({ writer, loaded }) =>
      `Diese Antwort hat ${writer} geschrieben, geladen ist ${loaded}. Zum Fortsetzen musst du ${writer} laden.`,
    advice: 'Oder erzeuge die Antwort mit dem geladenen Modell neu.',
  },
  not_an_alternative: {
    title: 'Dieses Token steht nicht zur Wahl',
    body: () => 'Das Token gehört nicht zu den Alternativen, die an dieser Stelle gespeichert sind.',
    advice: 'Wähle eine der angezeigten.',
  },
  end_token: {
    title: 'Dieses Token beendet die Antwort',
    body: () => 'Nach diesem Token kann nichts mehr kommen.',
    advice: 'Wähle ein anderes.',
  },
  nothing_drafted: {
    title: 'In dieser Antwort gab es keinen Draft',
    body: () => 'Für diese Antwort wurden keine Tokens vorgeschlagen, also lässt sich nichts ausrechnen.',
    advice: 'Wähle eine Antwort, die mit einer Draft-Methode entstanden ist.',
  },
  not_a_conversation: {
    title: 'Diese Datei ist keine Unterhaltung',
    body: () => 'Die Datei wurde nicht von Hunch exportiert. Es wurde nichts hinzugefügt.',
    advice: 'Wähle eine JSON-Datei, die Hunch gespeichert hat.',
  },
  conversation_version: {
    title: 'Die Datei hat eine andere Version',
    body: ({ version, readable }) =>
      `Die Unterhaltung hat die Formatversion ${version}, dieses Hunch liest Version ${readable}. Es wurde nichts hinzugefügt.`,
    advice: 'Importiere sie mit der Version von Hunch, die sie exportiert hat.',
  },
  empty_file: {
    title: 'Die Datei ist leer',
    body: ({ name }) => `${name} enthält keinen Text und wurde nicht angehängt.`,
    advice: 'Wähle eine andere Datei.',
  },
  file_exists: {
    title: 'Die Datei gibt es schon',
    body: ({ path }) => `${path} gibt es schon, deshalb wurde nichts gespeichert.`,
    advice: 'Wähle genau diese Datei, um sie zu ersetzen, oder einen anderen Namen.',
  },
  folder_known: {
    title: 'Dieser Ordner wird schon durchsucht',
    body: ({ folder }) => `Hunch sucht bereits in ${folder} nach Modellen.`,
    advice: 'Wähle einen anderen Ordner.',
  },
  model_in_memory: {
    title: 'Dieses Modell ist geladen',
    body: ({ name }) => `${name} ist im Speicher, deshalb wurde nichts gelöscht.`,
    advice: 'Entlade es oder öffne zuerst ein anderes Modell.',
  },
  model_not_in_library: {
    title: 'Dieses Modell ist nicht in der Bibliothek',
    body: ({ name }) => `Die Bibliothek kennt ${name} nicht.`,
    advice: 'Öffne es mit „Modell öffnen…“ oder nimm seinen Ordner in die Bibliothek auf.',
  },
  draft_too_large: {
    title: 'Der Draft ist größer als das Target',
    body: () => 'Ein Draft, der größer ist als das Target, spart keine Zeit.',
    advice: 'Vertausche die beiden oder wähle einen kleineren Draft.',
  },
  not_a_token: {
    title: 'Das ist kein Zugriffstoken',
    body: () => 'Ein Zugriffstoken des Hubs ist ein einziges Wort aus Buchstaben, Ziffern und Zeichen, etwa hf_….',
    advice: 'Kopiere es noch einmal aus deinen Einstellungen auf dem Hub.',
  },
  no_disk_for_training: {
    title: 'Der Platz reicht nicht fürs Training',
    body: ({ needed, free }) => `Die Trainingsdaten brauchen noch ${needed}, auf der Festplatte sind ${free} frei.`,
    advice: 'Trainiere mit weniger Tokens oder schaffe Platz.',
  },
  no_user_turn: {
    title: 'Dieses Modell kann keine Prompts schreiben',
    body: () => 'Sein Chat-Template hat keinen Platz für eine Frage, deshalb kann es sich keine Prompts fürs Training ausdenken.',
    advice: 'Wähle ein anderes Modell.',
  },
};
