// The text of errors in German: what happened, what is safe, what to do.

import type { ErrorCatalogue, RefusalCatalogue, RunningWorkWords, ServerRemedyWords } from './keys';

const serverRemedies: ServerRemedyWords = {
  check_address: 'Prüfe, ob er läuft und ob die Adresse stimmt.',
  check_protocol: 'Prüfe die Adresse: Sie muss zu einem Server gehören, der OpenAIs Protokoll spricht.',
  choose_model: 'Wähle ein anderes seiner Modelle.',
  follow_redirect: 'Er leitet auf eine andere Adresse um. Füge diese hinzu.',
  add_key: 'Er braucht einen Schlüssel. Füge ihn in der Bibliothek hinzu.',
  check_key: 'Prüfe seinen Schlüssel.',
  wait: 'Warte etwas und versuche es dann erneut.',
  change_request: 'Ändere die Frage oder die Einstellungen.',
  retry: 'Versuche es erneut.',
};

const runningWork: RunningWorkWords = {
  answer: 'Eine Antwort wird geschrieben. Stoppe sie oder warte, bis sie fertig ist.',
  measurement: 'Eine Messung läuft. Stoppe sie oder warte, bis sie fertig ist.',
  training: 'Ein Drafter wird trainiert. Halte das Training an oder warte, bis es fertig ist.',
  loading: 'Modelle werden geladen oder entladen. Warte, bis das fertig ist.',
  update: 'Hunch wird gerade aktualisiert. Warte, bis das fertig ist.',
  other: 'Eine Antwort oder eine Messung läuft. Stoppe sie oder warte, bis sie fertig ist.',
};

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
    body: ({ path }) => `${path} ist kein gültiges Modell. Die Datei ist unverändert.`,
    advice: 'Lade sie neu herunter oder wähle eine andere.',
  },
  unsupported_model: {
    title: 'Dieses Modell wird nicht unterstützt',
    body: ({ path }) => `Hunch kann ${path} nicht ausführen. Die Datei ist unverändert.`,
    advice: 'Wähle ein anderes Modell, zum Beispiel aus dem Katalog der Bibliothek.',
  },
  vocabulary_mismatch: {
    title: 'Der Draft passt nicht zum Target',
    body: () => 'Draft und Target haben zu wenige Tokens gemeinsam.',
    advice: 'Wähle einen Draft derselben Modellfamilie oder eine Methode, die keinen braucht.',
  },
  context_overflow: {
    title: 'Die Unterhaltung ist zu lang',
    body: ({ prompt, context }) => `Der Prompt hat ${prompt} Tokens, der Kontext fasst nur ${context}. Die Unterhaltung bleibt erhalten.`,
    advice: 'Kürze die Frage oder die Anweisungen, oder lade das Modell mit größerem Kontext.',
  },
  not_text: {
    title: 'Keine Textdatei',
    body: ({ name }) => `„${name}“ ist kein UTF-8-Text und wird nicht verwendet.`,
    advice: 'Wähle eine Textdatei oder speichere sie als UTF-8.',
  },
  file_too_large: {
    title: 'Die Datei ist zu groß',
    body: ({ name, bytes, most }) => `„${name}“ hat ${bytes}, erlaubt sind Dateien bis ${most}.`,
    advice: 'Wähle einen Teil davon.',
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
    body: ({ work }) => runningWork[work as keyof RunningWorkWords] ?? runningWork.other,
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
    body: ({ address, remedy }) =>
      `Keine Antwort von ${address}. ${serverRemedies[remedy as keyof ServerRemedyWords] ?? serverRemedies.retry}`,
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
  model_too_large: {
    title: 'Der Speicher reicht nicht',
    body: ({ context, needed, usable }) =>
      `Mit einem Kontext von ${context} Tokens braucht das ${needed} (vorhergesagt), Modelle dürfen ${usable} belegen. Es wurde nichts geladen.`,
    advice: 'Wähle ein kleineres Modell, eine kleinere Quantisierung oder weniger Kontext.',
  },
  training_too_large: {
    title: 'Der Speicher reicht nicht fürs Training',
    body: ({ needed }) => `Das Training braucht ${needed} zusätzlich zum Modell. Es wurde nichts geändert.`,
    advice: 'Wähle ein kleineres Modell.',
  },
  no_user_turn: {
    title: 'Dieses Modell kann keine Prompts schreiben',
    body: () => 'Seine Chatvorlage hat keinen Platz für eine Frage, deshalb kann es sich keine Prompts fürs Training ausdenken.',
    advice: 'Wähle ein anderes Modell.',
  },
  unusable_scores: {
    title: 'Das Modell liefert keine brauchbaren Werte',
    body: () => 'Seine Ausgaben sind keine Zahlen, deshalb lässt sich kein Token wählen. Vielleicht ist die Datei beschädigt.',
    advice: 'Lade das Modell neu herunter.',
  },
  nothing_fits_format: {
    title: 'Die Antwort passt nicht weiter ins Format',
    body: () => 'Keines der Token passt hier ins verlangte Format. Der bisherige Text bleibt erhalten.',
    advice: 'Ändere das Format oder antworte neu.',
  },
  not_a_file: {
    title: 'Das ist keine Datei',
    body: ({ path }) => `${path} ist ein Ordner oder ein Gerät. Es wurde nichts hinzugefügt.`,
    advice: 'Wähle eine andere Datei.',
  },
  import_too_large: {
    title: 'Die Unterhaltung ist zu groß',
    body: ({ path, most }) => `${path} ist größer als ${most}, mehr darf eine Unterhaltung nicht haben. Es wurde nichts hinzugefügt.`,
    advice: 'Wähle eine andere Datei.',
  },
  export_too_large: {
    title: 'Die Unterhaltung ist zu groß',
    body: ({ most }) => `Die Datei wäre größer als ${most} und ließe sich nicht wieder importieren. Es wurde nichts gespeichert.`,
    advice: 'Exportiere die Unterhaltung als Markdown.',
  },
  too_many_files: {
    title: 'Zu viele Dateien',
    body: ({ limit, found }) => `Eine Frage kann ${limit} Dateien haben, diese hat ${found}.`,
    advice: 'Entferne einige.',
  },
  cancelled: {
    title: 'Abgebrochen',
    body: () => 'Es wurde nichts geändert.',
  },
  empty_prompt: {
    title: 'Es gibt keinen Text',
    body: () => 'Das Modell hat nichts zu lesen.',
    advice: 'Gib etwas Text ein.',
  },
  not_unicode: {
    title: 'Der Name ist nicht lesbar',
    body: ({ path }) => `${path} ist kein gültiges Unicode.`,
    advice: 'Benenne die Datei oder den Ordner zuerst um.',
  },
  not_chosen: {
    title: 'Die Datei muss zuerst ausgewählt werden',
    body: ({ path }) => `${path} wurde nicht in diesem Fenster ausgewählt.`,
    advice: 'Wähle die Datei im Dialog aus oder ziehe sie ins Fenster.',
  },
  no_location: {
    title: 'Es wurde nichts gespeichert',
    body: () => 'Für diese Datei ist kein Ort mehr ausgewählt.',
    advice: 'Speichere sie noch einmal.',
  },
  not_kept: {
    title: 'Neue Nachrichten würden verloren gehen',
    body: () => 'Unterhaltungen sind nur im Speicher und würden beim Beenden verloren gehen.',
    advice: 'Wähle in der Liste der Unterhaltungen, was geschehen soll.',
  },
  no_such_copy: {
    title: 'Diese Sicherung gibt es nicht mehr',
    body: ({ name }) => `Die Sicherung ${name} wurde gelöscht.`,
    advice: 'Wähle eine andere.',
  },
  preference_too_large: {
    title: 'Die Einstellung ist zu groß',
    body: ({ name }) => `„${name}“ braucht mehr als 1 MB und wurde nicht gespeichert.`,
    advice: 'Kürze sie.',
  },
  no_such_folder: {
    title: 'Den Ordner gibt es nicht',
    body: ({ folder }) => `Es gibt keinen Ordner ${folder}. Es wurde nichts hinzugefügt.`,
    advice: 'Wähle einen anderen.',
  },
  not_a_folder: {
    title: 'Das ist kein Ordner',
    body: ({ path }) => `${path} ist eine Datei.`,
    advice: 'Wähle den Ordner, in dem sie liegt.',
  },
  folder_limit: {
    title: 'Zu viele Ordner',
    body: ({ limit }) => `Hunch durchsucht höchstens ${limit} hinzugefügte Ordner.`,
    advice: 'Entferne zuerst einen.',
  },
  folder_not_added: {
    title: 'Der Ordner steht nicht auf der Liste',
    body: ({ folder }) => `${folder} ist kein hinzugefügter Ordner. Seine Dateien sind unverändert.`,
  },
  folder_list_unreadable: {
    title: 'Die Liste der Ordner ist beschädigt',
    body: ({ path }) => `${path} lässt sich nicht lesen. Kein Modell wurde verändert.`,
    advice: 'Verschiebe diese Datei und füge die Ordner neu hinzu.',
  },
  folders_fixed: {
    title: 'Ordner lassen sich nicht hinzufügen',
    body: () => 'Hunch wurde mit nur einem Modellordner gestartet.',
    advice: 'Starte Hunch ohne diese Einstellung.',
  },
  no_data_folder: {
    title: 'Es gibt keinen Ordner für Daten',
    body: () => 'Dieser Benutzer hat keinen Ordner, in dem Hunch Daten ablegen kann.',
    advice: 'Gib mit HUNCH_DATA_DIR einen an.',
  },
  not_own_model: {
    title: 'Dieses Modell löscht Hunch nicht',
    body: ({ path }) => `${path} liegt nicht im Ordner von Hunch. Es wurde nichts gelöscht.`,
    advice: 'Lösche es mit dem Programm, das es heruntergeladen hat.',
  },
  context_too_long: {
    title: 'Der Kontext ist zu groß',
    body: ({ name, limit, context }) => `${name} unterstützt bis zu ${limit} Tokens, keinen Kontext von ${context}.`,
    advice: 'Wähle einen kleineren Kontext.',
  },
  no_such_head: {
    title: 'Head nicht gefunden',
    body: ({ name }) => `Unter den Modellen gibt es keinen Head ${name}.`,
    advice: 'Lege seinen Ordner in den Modellordner oder wähle einen anderen Drafter.',
  },
  unknown_head: {
    title: 'Dieser Head wird nicht unterstützt',
    body: ({ path }) => `Hunch kann ${path} nicht als Head ausführen. Die Dateien sind unverändert.`,
    advice: 'Wähle einen anderen Drafter.',
  },
  damaged_head: {
    title: 'Der Head ist nicht verwendbar',
    body: ({ path }) => `${path} ist keine gültige Datei eines Heads. Sie ist unverändert.`,
    advice: 'Lade sie neu herunter oder wähle einen anderen Drafter.',
  },
  head_of_other: {
    title: 'Der Head gehört zu einem anderen Modell',
    body: ({ name }) => `Dieser Head wurde für ${name} trainiert.`,
    advice: 'Öffne dieses Modell oder wähle einen anderen Drafter.',
  },
  head_mismatch: {
    title: 'Der Head gehört zu einem anderen Modell',
    body: () => 'Dieser Head passt nicht zum Target.',
    advice: 'Öffne sein Target oder wähle einen anderen Drafter.',
  },
  needs_draft: {
    title: 'Die Methode braucht ein Draft-Modell',
    body: ({ method }) => `„${method}“ braucht ein Draft-Modell, und es ist keines geladen.`,
    advice: 'Öffne eines oder wähle eine andere Methode.',
  },
  needs_low_bit_copy: {
    title: 'Die Methode braucht eine Low-Bit-Kopie',
    body: ({ method }) => `„${method}“ braucht eine Low-Bit-Kopie des Targets, und es ist keine geladen.`,
    advice: 'Wähle eine andere Methode. Die Kommandozeile erzeugt die Kopie.',
  },
  needs_texts: {
    title: 'Die Methode braucht Texte',
    body: ({ method }) => `„${method}“ kopiert aus deinen Texten, und es sind keine gewählt.`,
    advice: 'Füge in den Einstellungen unter „Eigene Texte“ welche hinzu oder wähle eine andere Methode.',
  },
  no_texts: {
    title: 'Kein Text gefunden',
    body: () => 'Es gibt keinen Text, aus dem kopiert werden kann.',
    advice: 'Wähle Dateien mit Text in UTF-8 oder Ordner, die solche enthalten.',
  },
  needs_head: {
    title: 'Die Methode braucht einen Head',
    body: ({ method }) => `„${method}“ braucht einen Head für dieses Modell, und es gibt keinen.`,
    advice: 'Trainiere einen in der Bibliothek oder wähle eine andere Methode.',
  },
  no_draft_to_compare: {
    title: 'An dieser Stelle gibt es keinen Draft',
    body: () => 'Kein Draft-Modell ist geladen, und ein Head braucht mindestens zwei Tokens davor.',
    advice: 'Öffne ein Draft-Modell, wähle eine spätere Stelle oder sieh dir die erfundenen Verteilungen an.',
  },
  lane_drafts_too_large: {
    title: 'Nicht genug Speicher für die Bahnen',
    body: ({ missing }) => `Den Drafts dieser Bahnen fehlen neben ihrem Target ${missing}. Es wurde nichts geändert.`,
    advice: 'Vergleiche weniger Drafts auf einmal.',
  },
  suite_too_large: {
    title: 'Die Datei ist zu groß',
    body: ({ name, most }) => `${name} ist größer als ${most}, die Grenze für eine Sammlung.`,
    advice: 'Teile sie auf oder wähle eine andere.',
  },
  suite_too_long: {
    title: 'Die Sammlung hat zu viele Prompts',
    body: ({ suite, limit }) => `„${suite}“ hat mehr als ${limit} Prompts, die Grenze.`,
    advice: 'Teile sie auf oder wähle eine andere Datei.',
  },
  suite_prompt_too_long: {
    title: 'Ein Prompt ist zu lang',
    body: ({ id, tokens, target, context }) =>
      `Prompt ${id} hat ${tokens} Tokens, in den Kontext von ${target} passen aber nur ${context}.`,
    advice: 'Kürze den Prompt oder lade das Modell mit einem längeren Kontext.',
  },
  suite_not_text: {
    title: 'Die Datei ist kein Text',
    body: ({ name }) => `${name} ist kein Text in UTF-8.`,
    advice: 'Speichere sie als UTF-8 oder wähle eine andere.',
  },
  not_a_prompt: {
    title: 'Die Datei ist keine Sammlung von Prompts',
    body: ({ suite, line }) => `Zeile ${line} von ${suite} ist kein Prompt.`,
    advice: 'Schreibe {"id": "…", "prompt": "…"} in jede Zeile oder nimm eine .txt-Datei mit einem Prompt pro Zeile.',
  },
  empty_prompt_id: {
    title: 'Ein Prompt hat keine id',
    body: ({ suite, line }) => `Zeile ${line} von ${suite} hat eine leere id.`,
    advice: 'Gib jedem Prompt eine eigene id.',
  },
  empty_suite_prompt: {
    title: 'Ein Prompt ist leer',
    body: ({ suite, line }) => `Zeile ${line} von ${suite} hat einen leeren Prompt.`,
    advice: 'Fülle ihn aus oder lösche die Zeile.',
  },
  repeated_prompt_id: {
    title: 'Zwei Prompts haben dieselbe id',
    body: ({ suite, line, id, first }) => `Zeile ${line} von ${suite} hat die id „${id}“ von Zeile ${first}.`,
    advice: 'Gib jedem Prompt eine eigene id.',
  },
  empty_suite: {
    title: 'Die Datei hat keine Prompts',
    body: ({ suite }) => `Alle Zeilen von ${suite} sind leer.`,
    advice: 'Füge eine Zeile hinzu oder wähle eine andere Datei.',
  },
  costs_not_measured: {
    title: 'Noch nicht gemessen',
    body: () => 'Die Dauer eines Durchlaufs mit diesen Modellen wurde noch nicht gemessen.',
    advice: 'Miss sie zuerst.',
  },
  no_longer_kept: {
    title: 'Diese Zahlen gibt es nicht mehr',
    body: () => 'Die Zahlen dieser Position, Antwort oder Messung sind nicht mehr gespeichert.',
    advice: 'Wähle sie noch einmal aus.',
  },
  nothing_measured: {
    title: 'Es ließ sich nichts messen',
    body: ({ method }) => `„${method}“ hat keinen messbaren Text geschrieben.`,
    advice: 'Wähle einen anderen Prompt.',
  },
  no_usable_prompts: {
    title: 'Dieses Modell kann keine Prompts schreiben',
    body: () => 'Es schreibt keine brauchbaren Prompts für sein eigenes Training.',
    advice: 'Wähle ein Chat-Modell.',
  },
  trained_elsewhere: {
    title: 'Dieser Head wird schon trainiert',
    body: () => 'Ein anderes laufendes Hunch trainiert diesen Head.',
    advice: 'Stoppe es dort oder warte, bis es fertig ist.',
  },
  other_training_data: {
    title: 'Die Trainingsdaten gehören zu einem anderen Modell',
    body: ({ folder }) => `Die Daten in ${folder} gehören zu einem anderen Modell oder einer anderen Version. Sie sind unverändert.`,
    advice: 'Lösche den Ordner, um neu anzufangen.',
  },
  training_data_damaged: {
    title: 'Die Trainingsdaten sind beschädigt',
    body: ({ path, folder }) => `${path} lässt sich nicht lesen, das Training in ${folder} kann nicht weitergehen.`,
    advice: 'Lösche den Ordner, um neu anzufangen.',
  },
  damaged_shard: {
    title: 'Ein Teil der Trainingsdaten war beschädigt',
    body: ({ path }) => `${path} ließ sich nicht lesen und wurde entfernt. Alles andere bleibt erhalten.`,
    advice: 'Starte das Training noch einmal. Die fehlenden Antworten werden neu geschrieben.',
  },
  single_layer: {
    title: 'Für dieses Modell gibt es keinen Head',
    body: () => 'Das Modell hat nur eine Schicht, ein Head liest mindestens zwei.',
    advice: 'Wähle ein anderes Modell.',
  },
  states_not_finite: {
    title: 'Mit diesem Modell geht kein Training',
    body: () => 'Seine internen Zustände sind keine endlichen Zahlen.',
    advice: 'Wähle ein anderes Modell oder eine andere Datei davon.',
  },
  not_a_repository: {
    title: 'Das ist kein Repository',
    body: () => 'Ein Repository des Hubs hat Besitzer und Namen, etwa Qwen/Qwen3-8B-GGUF.',
    advice: 'Schreibe es wie auf seiner Seite.',
  },
  bad_search: {
    title: 'Die Suche hat keine Wörter',
    body: () => 'Eine Suche im Hub braucht 1 bis 200 Zeichen.',
    advice: 'Suche nach einem Teil des Namens, etwa qwen3 8b.',
  },
  hub_busy: {
    title: 'Der Hub ist ausgelastet',
    body: ({ endpoint, seconds }) =>
      `${endpoint} hat die Anfrage abgelehnt, weil es zu viele waren. Versuche es in ${seconds} s noch einmal. Heruntergeladenes bleibt erhalten.`,
    advice: 'Mit einem Zugriffstoken ist die Grenze höher.',
  },
  hub_slow: {
    title: 'Der Hub ist langsam',
    body: ({ endpoint, seconds }) => `${endpoint} hat länger als ${seconds} s für eine Antwort gebraucht. Nichts wurde verändert.`,
    advice: 'Prüfe die Verbindung und versuche es noch einmal.',
  },
  no_hub_search: {
    title: 'Der Hub lässt sich nicht durchsuchen',
    body: ({ endpoint }) => `${endpoint} beantwortet keine Suchen. Nichts wurde verändert.`,
    advice: 'Gib stattdessen den genauen Namen eines Repositorys ein.',
  },
  not_a_model_path: {
    title: 'Das ist keine Modelldatei',
    body: () => 'Das ist kein Pfad eines Modells in einem Repository.',
    advice: 'Wähle eine der Dateien, die das Repository auflistet.',
  },
  no_such_repository: {
    title: 'Auf dem Hub nicht gefunden',
    body: ({ repository }) => `Auf dem Hub gibt es kein Repository ${repository}, oder es ist nicht öffentlich.`,
    advice: 'Prüfe den Namen. Private Repositorys brauchen ein Zugriffstoken.',
  },
  no_such_hub_file: {
    title: 'Auf dem Hub nicht gefunden',
    body: ({ repository }) => `${repository} hat diese Datei nicht mehr.`,
    advice: 'Vielleicht wurde sie umbenannt. Wähle eine der Dateien, die das Repository jetzt auflistet.',
  },
  terms_need_token: {
    title: 'Die Bedingungen müssen zuerst akzeptiert werden',
    body: ({ repository, page }) =>
      `${repository} ist nur verfügbar, wenn du den Bedingungen zustimmst. Stimme ihnen auf ${page} zu und gib dann ein Zugriffstoken dieses Kontos ein.`,
  },
  terms_not_accepted: {
    title: 'Die Bedingungen müssen zuerst akzeptiert werden',
    body: ({ repository, page }) =>
      `Das Konto deines Zugriffstokens hat noch keinen Zugriff auf ${repository}. Stimme den Bedingungen auf ${page} zu, warte gegebenenfalls auf die Freigabe und versuche es dann erneut.`,
  },
  token_rejected: {
    title: 'Das Zugriffstoken wurde abgelehnt',
    body: () => 'Das Token ist vielleicht abgelaufen oder widerrufen. Heruntergeladene Dateien bleiben erhalten.',
    advice: 'Erzeuge in deinen Einstellungen auf dem Hub ein neues und ersetze das alte.',
  },
  no_hub_access: {
    title: 'Kein Zugriff auf dieses Repository',
    body: ({ repository }) => `Der Hub gibt keinen Zugriff auf ${repository}. Heruntergeladene Dateien bleiben erhalten.`,
    advice: 'Verwende ein Token mit Zugriff.',
  },
  no_keychain: {
    title: 'Es gibt keinen Schlüsselbund',
    body: () => 'Dieses System hat keinen Schlüsselbund, und Hunch speichert ein Token nur dort.',
    advice: 'Setze HF_TOKEN oder melde dich mit „hf auth login“ an.',
  },
  keychain_failed: {
    title: 'Das Zugriffstoken wurde nicht gespeichert',
    body: () => 'Der Schlüsselbund ließ sich nicht beschreiben. Es wurde nichts geändert.',
    advice: 'Versuche es erneut.',
  },
  unencrypted_key: {
    title: 'Der Schlüssel wurde nicht verwendet',
    body: ({ address }) => `Andere im Netzwerk könnten den Schlüssel auf dem Weg zu ${address} lesen.`,
    advice: 'Verwende eine https-Adresse oder erreiche den Server durch einen Tunnel zu diesem Rechner.',
  },
  not_a_server_key: {
    title: 'Der Schlüssel ist ungültig',
    body: () => 'Der Schlüssel des Servers muss ein Wort ohne Leerzeichen und Sonderzeichen sein.',
    advice: 'Kopiere ihn noch einmal aus den Einstellungen des Servers.',
  },
  no_such_server: {
    title: 'Der Server steht nicht in der Liste',
    body: ({ address }) => `${address} gehört nicht zu den Servern der Bibliothek.`,
    advice: 'Füge ihn dort hinzu oder wähle einen anderen.',
  },
  no_such_server_model: {
    title: 'Der Server hat dieses Modell nicht',
    body: ({ address, model }) => `${address} bietet „${model}“ nicht an.`,
    advice: 'Wähle eines seiner Modelle in der Bibliothek.',
  },
  server_cannot_continue: {
    title: 'Ein Server kann seine Antwort nicht fortsetzen',
    body: () => 'Nur Antworten geladener Modelle lassen sich fortsetzen.',
    advice: 'Beantworte die Frage noch einmal.',
  },
  server_keychain_failed: {
    title: 'Der Schlüsselbund ließ sich nicht verwenden',
    body: () => 'Der Schlüssel des Servers wurde weder gelesen noch gespeichert.',
    advice: 'Entsperre den Schlüsselbund und versuche es erneut, oder gib den Schlüssel noch einmal ein.',
  },
  bad_endpoint: {
    title: 'Die Adresse des Hubs ist ungültig',
    body: () => 'HF_ENDPOINT ist keine Adresse.',
    advice: 'Schreibe sie wie https://huggingface.co oder lösche die Variable.',
  },
  bad_proxy: {
    title: 'Der Proxy lässt sich nicht verwenden',
    body: () => 'Die Adresse des Proxys ist ungültig.',
    advice: 'Prüfe HTTPS_PROXY und ALL_PROXY.',
  },
  no_tls: {
    title: 'Keine verschlüsselten Verbindungen',
    body: () => 'TLS lässt sich auf diesem System nicht einrichten.',
    advice: 'Prüfe die Zertifikate des Systems und, falls gesetzt, SSL_CERT_FILE und SSL_CERT_DIR.',
  },
  no_such_download: {
    title: 'Diesen Download gibt es nicht mehr',
    body: () => 'Der Download wurde verworfen.',
    advice: 'Wähle einen anderen.',
  },
  name_taken: {
    title: 'Der Name ist vergeben',
    body: ({ name, limit }) => `Es gibt schon ${limit} Modelle namens ${name}.`,
    advice: 'Lösche einige davon und versuche es dann erneut.',
  },
};
