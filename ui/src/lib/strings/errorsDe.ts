// What the window says of an error, in German: what happened, what is safe, what to do.

import type { ErrorCatalogue } from './keys';

export const errorsDe: ErrorCatalogue = {
  invalid_request: {
    title: 'Diese Anfrage lässt sich nicht ausführen',
  },
  model_not_found: {
    title: 'Das Modell wurde nicht gefunden',
    body: ({ name }) => `Es gibt kein Modell namens „${name}“.`,
  },
  invalid_model_file: {
    title: 'Die Modelldatei ist nicht verwendbar',
    body: ({ path }) => `${path} ist kein brauchbares GGUF-Modell. Die Datei ist unverändert.`,
    advice: 'Lade sie neu herunter oder wähle eine andere.',
  },
  unsupported_model: {
    title: 'Dieses Modell wird nicht unterstützt',
    body: ({ path }) => `${path} ist von einer Art, die Hunch nicht ausführt. Die Datei ist unverändert.`,
    advice: 'Wähle ein GGUF-Modell einer unterstützten Architektur.',
  },
  vocabulary_mismatch: {
    title: 'Der Draft passt nicht zum Target',
    body: () => 'Draft und Target zerlegen Text nicht in dieselben Tokens.',
    advice: 'Wähle einen Draft derselben Modellfamilie oder eine Methode, die keinen braucht.',
  },
  context_overflow: {
    title: 'Die Unterhaltung ist zu lang',
    body: ({ prompt, context }) => `Zu lesen sind ${prompt} Tokens, der Kontext dieses Modells fasst ${context}. Was gesagt wurde, bleibt erhalten.`,
    advice: 'Kürze die Frage oder die Anweisungen, oder lade das Modell mit größerem Kontext.',
  },
  out_of_memory: {
    title: 'Der Speicher reicht nicht',
    body: () => 'Dafür ist nicht genug Speicher da.',
    advice: 'Wähle ein kleineres Modell, eine kleinere Quantisierung oder weniger Kontext.',
  },
  io: {
    title: 'Eine Datei ließ sich nicht lesen oder schreiben',
    body: ({ path }) => `Es geht um ${path}.`,
    advice: 'Sieh nach, ob sie da ist und verwendet werden darf, und versuche es dann erneut.',
  },
  store: {
    title: 'Die Unterhaltungen lassen sich nicht speichern',
    body: () => 'Ihre Datei lässt sich nicht lesen oder schreiben. Was darin war, ist unverändert.',
    advice: 'Schließe andere Fenster von Hunch, oder sieh nach, ob auf die Festplatte geschrieben werden kann.',
  },
  no_model: {
    title: 'Es ist kein Modell geladen',
    body: () => 'Ohne Modell lässt sich nichts beantworten.',
    advice: 'Öffne zuerst ein Modell.',
  },
  busy: {
    title: 'Die Engine ist beschäftigt',
    body: () => 'Eine Antwort wird geschrieben, oder eine Messung läuft.',
    advice: 'Halte sie an oder warte, bis sie fertig ist.',
  },
  stopped: {
    title: 'Das Laden wurde angehalten',
    body: () => 'Was vorher im Speicher war, ist noch da.',
  },
  device: {
    title: 'Fehler auf dem Gerät',
    body: ({ device }) => `Das Rechnen auf „${device}“ ist gescheitert. Was gesagt wurde, bleibt erhalten.`,
    advice: 'Starte Hunch neu und versuche es noch einmal.',
  },
  hub_unreachable: {
    title: 'Der Hub ist nicht erreichbar',
    body: ({ endpoint }) => `${endpoint} lässt sich nicht verwenden. Was schon hier ist, bleibt erhalten.`,
    advice: 'Prüfe die Verbindung (und HF_ENDPOINT und HTTPS_PROXY, falls sie gesetzt sind) und versuche es dann erneut.',
  },
  hub_not_found: {
    title: 'Der Hub hat kein solches Modell',
    body: ({ what }) => `Der Hub hat das nicht: ${what}.`,
  },
  hub_gated: {
    title: 'Bedingungen müssen angenommen werden',
    body: ({ repository }) => `Die Eigentümer von ${repository} geben es nur an Leute weiter, die ihren Bedingungen zustimmen.`,
  },
  hub_token: {
    title: 'Das Token wurde nicht angenommen',
  },
  wrong_checksum: {
    title: 'Der Download ist beschädigt',
    body: ({ file, expected, found, path }) =>
      `Die Prüfsumme von ${file} ist nicht die, die der Hub nennt (${found} statt ${expected}). Die Datei liegt als ${path} beiseite und wird nicht als Modell verwendet.`,
    advice: 'Versuche es erneut, um sie neu zu holen; endet das wieder so, verändert sie etwas auf dem Weg.',
  },
  not_of_catalogue: {
    title: 'Der Hub hat inzwischen eine andere Datei',
    body: ({ file, expected, found }) =>
      `${file} ist nicht mehr die Datei, mit der der Katalog geprüft wurde (ihre Prüfsumme beginnt mit ${found} statt ${expected}). Es wurde nichts geholt, und was hier ist, bleibt.`,
    advice: 'Vielleicht gibt es eine neue: Um sie zu holen, suche das Repository mit seinem Namen und wähle die Datei dort aus.',
  },
  disk_full: {
    title: 'Die Festplatte ist voll',
    body: ({ folder, missing, promised }) =>
      `Auf der Festplatte von ${folder} ist zu wenig Platz: ${promised === '' ? 'Es' : `Mit den ${promised}, die andere Downloads noch brauchen,`} fehlen ${missing}. Was schon hier ist, bleibt erhalten.`,
    advice: 'Schaffe Platz und mach dann weiter.',
  },
  download_unreadable: {
    title: 'Ein angefangener Download kann nicht weitergehen',
    body: ({ folder, bytes }) =>
      `Was über ihn aufgeschrieben war, lässt sich nicht lesen. ${bytes} davon liegen in ${folder}; sie sind noch kein Modell, und sonst ist nichts betroffen.`,
    advice: 'Verwirf ihn, um den Platz freizugeben, und hole das Modell dann neu.',
  },
  download_elsewhere: {
    title: 'Ein anderes Hunch lädt das gerade',
    body: ({ name }) => `${name} wird von einem anderen Hunch heruntergeladen, das gerade läuft.`,
    advice: 'Warte darauf, oder halte es dort an und mach hier weiter.',
  },
  internal: {
    title: 'In Hunch ist etwas schiefgegangen',
    body: () => 'Das ist ein Fehler in Hunch. Was gesagt wurde, bleibt erhalten.',
    advice: 'Versuche es erneut; passiert es wieder, melde es bitte.',
  },
};
