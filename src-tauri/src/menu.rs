//! The native menu. What the window's page has to do goes to it as one event, `menu`, whose payload
//! is the item's id; what the system or the shell does itself stays here. What is in the menu and what it is
//! called is made purely, as a [`Model`]; the words come from the page's catalogues, in English until the page
//! tells those of its language.

use std::collections::BTreeMap;

use tauri::menu::{
    AboutMetadata, HELP_SUBMENU_ID, Menu, MenuBuilder, MenuEvent, MenuItemBuilder, PredefinedMenuItem,
    Submenu, SubmenuBuilder, WINDOW_SUBMENU_ID,
};
use tauri::{AppHandle, Emitter, Listener, Manager, Runtime};

use crate::desk;

/// The event that carries the id of a chosen item to the page.
const MENU_EVENT: &str = "menu";
/// The event by which the page tells what the items are called, by id.
const WORDS_EVENT: &str = "menu-words";

/// The page's English words for the menu.
const ENGLISH: &str = include_str!("../../ui/src/lib/strings/menuEn.json");

/// Items the shell acts on where the system has none of its own.
const QUIT: &str = "quit";
const FULL_SCREEN: &str = "full-screen";
/// By the shell, so that it works where the page does not.
const SHOW_LOG: &str = "show-log";
/// What stands under the name in the window about Hunch.
const COMMENTS: &str = "about-comments";

/// What one line of a menu is, by ids. An id of the page's is that of its command, and part of the wire.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Entry {
    /// The page or the shell acts on it. With the keys that choose it; none where there are none.
    Item(&'static str, Option<&'static str>),
    /// The system acts on it, and knows its keys.
    System(Own),
    Line,
}

/// What the system does itself.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Own {
    About,
    Services,
    Hide,
    HideOthers,
    ShowAll,
    Quit,
    Undo,
    Redo,
    Cut,
    Copy,
    Paste,
    SelectAll,
    CloseWindow,
    FullScreen,
    Minimize,
    Zoom,
}

impl Own {
    /// The id of its word.
    fn id(self) -> &'static str {
        match self {
            Self::About => "about",
            Self::Services => "services",
            Self::Hide => "hide",
            Self::HideOthers => "hide-others",
            Self::ShowAll => "show-all",
            Self::Quit => QUIT,
            Self::Undo => "undo",
            Self::Redo => "redo",
            Self::Cut => "cut",
            Self::Copy => "copy",
            Self::Paste => "paste",
            Self::SelectAll => "select-all",
            Self::CloseWindow => "close-window",
            Self::FullScreen => FULL_SCREEN,
            Self::Minimize => "minimize",
            Self::Zoom => "zoom",
        }
    }
}

use Entry::{Item, Line, System};

/// A menu of the bar: the id of its title, and what is in it.
type Section = (&'static str, Vec<Entry>);

const SETTINGS: Entry = Item("settings", Some("CmdOrCtrl+,"));
const FIND: Entry = Item("search", Some("CmdOrCtrl+F"));

const FILE: [Entry; 8] = [
    Item("new-conversation", Some("CmdOrCtrl+N")),
    Line,
    Item("open-model", Some("CmdOrCtrl+O")),
    Item("open-draft", Some("CmdOrCtrl+Shift+O")),
    Line,
    Item("import", None),
    Item("export-markdown", None),
    Item("export-json", None),
];

const ANSWER: [Entry; 3] =
    [Item("answer-again", Some("CmdOrCtrl+R")), Item("go-on", None), Item("stop", Some("CmdOrCtrl+."))];

const VIEW: [Entry; 9] = [
    Item("place-chat", Some("CmdOrCtrl+1")),
    Item("place-compare", Some("CmdOrCtrl+2")),
    Item("place-lab", Some("CmdOrCtrl+3")),
    Item("place-library", Some("CmdOrCtrl+4")),
    Line,
    Item("palette", Some("CmdOrCtrl+K")),
    Item("text-larger", Some("CmdOrCtrl+=")),
    Item("text-smaller", Some("CmdOrCtrl+-")),
    Item("text-usual", Some("CmdOrCtrl+0")),
];

/// What is in the menu of a Mac, or of another system.
fn sections(mac: bool) -> Vec<Section> {
    if mac { mac_sections() } else { other_sections() }
}

fn mac_sections() -> Vec<Section> {
    let application = vec![
        System(Own::About),
        Line,
        SETTINGS,
        Line,
        System(Own::Services),
        Line,
        System(Own::Hide),
        System(Own::HideOthers),
        System(Own::ShowAll),
        Line,
        System(Own::Quit),
    ];
    let edit = [Own::Undo, Own::Redo].map(System);
    let clipboard = [Own::Cut, Own::Copy, Own::Paste, Own::SelectAll].map(System);
    vec![
        (APPLICATION, application),
        ("menu-file", [&FILE[..], &[Line, System(Own::CloseWindow)]].concat()),
        ("menu-edit", [&edit[..], &[Line], &clipboard, &[Line, FIND]].concat()),
        ("menu-answer", ANSWER.to_vec()),
        ("menu-view", [&VIEW[..], &[Line, System(Own::FullScreen)]].concat()),
        ("menu-window", vec![System(Own::Minimize), System(Own::Zoom)]),
        // The system adds its search field.
        ("menu-help", vec![Item(SHOW_LOG, None)]),
    ]
}

/// No Edit menu: GTK would take Ctrl+C and Ctrl+V away from the page, which handles them itself.
fn other_sections() -> Vec<Section> {
    let end_of_file = [Line, FIND, Line, SETTINGS, Line, Item(QUIT, Some("Ctrl+Q"))];
    vec![
        ("menu-file", [&FILE[..], &end_of_file].concat()),
        ("menu-answer", ANSWER.to_vec()),
        ("menu-view", [&VIEW[..], &[Line, Item(FULL_SCREEN, Some("F11"))]].concat()),
        ("menu-help", vec![Item(SHOW_LOG, None), Line, System(Own::About)]),
    ]
}

/// The menu that a Mac titles with the application's name, whatever it is called here.
const APPLICATION: &str = "Hunch";

/// Every item the page acts on, on any system.
fn page_items() -> impl Iterator<Item = &'static str> {
    let all = sections(true).into_iter().chain(sections(false)).flat_map(|(_, entries)| entries);
    all.filter_map(|entry| match entry {
        Item(id, _) if ![QUIT, FULL_SCREEN, SHOW_LOG].contains(&id) => Some(id),
        _ => None,
    })
}

/// What the menu is called, by id. An id that has no word here has the English one.
#[derive(Clone, Debug, Default)]
struct Words(BTreeMap<String, String>);

impl Words {
    /// Words as the page tells them: a JSON object of texts.
    fn read(told: &str) -> serde_json::Result<Self> {
        serde_json::from_str(told).map(Self)
    }

    fn of(&self, id: &str) -> String {
        let word = |words: &Self| words.0.get(id).filter(|word| !word.trim().is_empty()).cloned();
        word(self)
            .or_else(|| Self::read(ENGLISH).ok().and_then(|english| word(&english)))
            .unwrap_or_else(|| id.into())
    }
}

/// The menu as it will be drawn: nothing of the system in it yet.
#[derive(Debug, PartialEq)]
struct Model {
    submenus: Vec<SubmenuModel>,
}

#[derive(Debug, PartialEq)]
struct SubmenuModel {
    id: &'static str,
    title: String,
    /// Each with its title; a line has none.
    entries: Vec<(Entry, String)>,
}

/// The menu of a Mac, or of another system, in these words.
fn model(mac: bool, words: &Words) -> Model {
    let titled = |entry: Entry| match entry {
        Item(id, _) => (entry, words.of(id)),
        System(own) => (entry, words.of(own.id())),
        Line => (entry, String::new()),
    };
    let submenus = sections(mac).into_iter().map(|(id, entries)| SubmenuModel {
        id,
        title: words.of(id),
        entries: entries.into_iter().map(titled).collect(),
    });
    Model { submenus: submenus.collect() }
}

/// The whole menu, as the platform wants it, in English.
///
/// # Errors
/// When the system refuses a menu.
pub(crate) fn build<R: Runtime>(app: &AppHandle<R>) -> tauri::Result<Menu<R>> {
    draw(app, &Words::default())
}

/// Has the menu speak as the page tells it to, from now on. Words that cannot be read change nothing.
pub(crate) fn hear_words<R: Runtime>(app: &AppHandle<R>) {
    let listener = app.clone();
    app.listen_any(WORDS_EVENT, move |event| {
        if let Ok(words) = Words::read(event.payload()) {
            // A system that refuses it keeps the menu it has.
            let _ = draw(&listener, &words).and_then(|menu| listener.set_menu(menu));
        }
    });
}

/// Acts on a chosen item.
pub(crate) fn chosen<R: Runtime>(app: &AppHandle<R>, event: MenuEvent) {
    match event.id().as_ref() {
        QUIT => app.exit(0),
        FULL_SCREEN => toggle_full_screen(app),
        SHOW_LOG => {
            if let Err(error) = desk::show_log(app) {
                tracing::warn!("The log could not be shown: {}", error.message);
            }
        }
        id if page_items().any(|item| item == id) => {
            // Fails only when no page is there to hear it.
            let _ = app.emit(MENU_EVENT, id);
        }
        _ => {}
    }
}

/// Makes a menu of the system's.
fn draw<R: Runtime>(app: &AppHandle<R>, words: &Words) -> tauri::Result<Menu<R>> {
    let mut menu = MenuBuilder::new(app);
    for submenu in model(cfg!(target_os = "macos"), words).submenus {
        menu = menu.item(&draw_submenu(app, submenu, words)?);
    }
    menu.build()
}

fn draw_submenu<R: Runtime>(
    app: &AppHandle<R>,
    model: SubmenuModel,
    words: &Words,
) -> tauri::Result<Submenu<R>> {
    // The system looks for these two by ids of its own.
    let id = match model.id {
        "menu-window" => WINDOW_SUBMENU_ID,
        "menu-help" => HELP_SUBMENU_ID,
        id => id,
    };
    let mut submenu = SubmenuBuilder::with_id(app, id, model.title);
    for (entry, title) in model.entries {
        submenu = match entry {
            Line => submenu.separator(),
            Item(id, keys) => {
                let item = MenuItemBuilder::with_id(id, title);
                let item = match keys {
                    Some(keys) => item.accelerator(keys),
                    None => item,
                };
                submenu.item(&item.build(app)?)
            }
            System(own) => submenu.item(&system_item(app, own, &title, words)?),
        };
    }
    submenu.build()
}

/// An item that the system acts on.
fn system_item<R: Runtime>(
    app: &AppHandle<R>,
    own: Own,
    title: &str,
    words: &Words,
) -> tauri::Result<PredefinedMenuItem<R>> {
    let title = Some(title);
    match own {
        Own::About => PredefinedMenuItem::about(app, title, Some(about(app, words))),
        Own::Services => PredefinedMenuItem::services(app, title),
        Own::Hide => PredefinedMenuItem::hide(app, title),
        Own::HideOthers => PredefinedMenuItem::hide_others(app, title),
        Own::ShowAll => PredefinedMenuItem::show_all(app, title),
        Own::Quit => PredefinedMenuItem::quit(app, title),
        Own::Undo => PredefinedMenuItem::undo(app, title),
        Own::Redo => PredefinedMenuItem::redo(app, title),
        Own::Cut => PredefinedMenuItem::cut(app, title),
        Own::Copy => PredefinedMenuItem::copy(app, title),
        Own::Paste => PredefinedMenuItem::paste(app, title),
        Own::SelectAll => PredefinedMenuItem::select_all(app, title),
        Own::CloseWindow => PredefinedMenuItem::close_window(app, title),
        Own::FullScreen => PredefinedMenuItem::fullscreen(app, title),
        Own::Minimize => PredefinedMenuItem::minimize(app, title),
        Own::Zoom => PredefinedMenuItem::maximize(app, title),
    }
}

fn about<'a, R: Runtime>(app: &'a AppHandle<R>, words: &Words) -> AboutMetadata<'a> {
    AboutMetadata {
        name: Some("Hunch".into()),
        version: Some(app.package_info().version.to_string()),
        comments: Some(words.of(COMMENTS)),
        license: Some(env!("CARGO_PKG_LICENSE").into()),
        icon: app.default_window_icon().cloned(),
        ..AboutMetadata::default()
    }
}

fn toggle_full_screen<R: Runtime>(app: &AppHandle<R>) {
    if let Some(window) = app.get_webview_window("main")
        && let Ok(full) = window.is_fullscreen()
    {
        // The window system may refuse; the window then stays as it is.
        let _ = window.set_fullscreen(!full);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const GERMAN: &str = include_str!("../../ui/src/lib/strings/menuDe.json");

    #[test]
    fn the_page_acts_on_every_item_it_is_sent() {
        // The list of places, of which the commands that lead to them are made.
        let places = include_str!("../../ui/src/lib/strings/keys.ts")
            .lines()
            .find(|line| line.starts_with("export const places ="))
            .unwrap();
        let page = include_str!("../../ui/src/lib/commands.ts");
        for item in page_items() {
            let (page, id) = item.strip_prefix("place-").map_or((page, item), |place| (places, place));
            assert!(page.contains(&format!("'{id}'")), "{item}");
        }
        for wanted in ["search", "import", "export-markdown", "export-json", "answer-again"] {
            assert!(page_items().any(|item| item == wanted), "{wanted}");
        }
    }

    #[test]
    fn every_id_has_words_in_both_languages_and_no_word_is_left_over() {
        let mut ids = BTreeSet::from([COMMENTS]);
        for (id, entries) in sections(true).into_iter().chain(sections(false)) {
            ids.insert(id);
            ids.extend(entries.iter().filter_map(|entry| match entry {
                Item(id, _) => Some(*id),
                System(own) => Some(own.id()),
                Line => None,
            }));
        }
        // A name, the same in every language.
        ids.remove(APPLICATION);
        for told in [ENGLISH, GERMAN] {
            let words = Words::read(told).unwrap();
            assert_eq!(words.0.keys().map(String::as_str).collect::<BTreeSet<_>>(), ids);
            assert!(words.0.values().all(|word| !word.trim().is_empty()));
        }
    }

    #[test]
    fn a_menu_speaks_the_words_it_is_given_and_english_where_there_are_none() {
        let german = model(true, &Words::read(GERMAN).unwrap());
        let titles: Vec<&str> = german.submenus.iter().map(|submenu| submenu.title.as_str()).collect();
        assert_eq!(titles, ["Hunch", "Ablage", "Bearbeiten", "Antwort", "Darstellung", "Fenster", "Hilfe"]);
        let find = german.submenus[2].entries.last().unwrap();
        assert_eq!(find, &(FIND, "Suchen…".to_owned()));
        assert_eq!(model(true, &Words::default()), model(true, &Words::read(ENGLISH).unwrap()));
        let odd = Words::read(r#"{"menu-file": " ", "search": "Look", "stray": "x"}"#).unwrap();
        let other = model(false, &odd);
        assert_eq!(other.submenus[0].title, "File");
        assert!(other.submenus[0].entries.contains(&(FIND, "Look".to_owned())));
        assert!(Words::read("[1]").is_err() && Words::read(r#"{"a": 1}"#).is_err());
    }

    #[test]
    fn no_keys_choose_two_items() {
        for mac in [true, false] {
            let entries = sections(mac).into_iter().flat_map(|(_, entries)| entries);
            let keys: Vec<_> =
                entries.filter_map(|entry| if let Item(_, keys) = entry { keys } else { None }).collect();
            assert_eq!(keys.iter().collect::<BTreeSet<_>>().len(), keys.len());
        }
    }
}
