//! The native menu.
//!
//! An item that the page handles is sent to it as the event `menu`, with the item's id as payload. The system or the
//! shell handles the other items. A [`Model`] describes items and labels without any system calls. The labels come
//! from the page's string catalogues. They are English until the page sends those of its language.

use std::collections::BTreeMap;

use tauri::menu::{
    AboutMetadata, HELP_SUBMENU_ID, Menu, MenuBuilder, MenuEvent, MenuItemBuilder, PredefinedMenuItem,
    Submenu, SubmenuBuilder, WINDOW_SUBMENU_ID,
};
use tauri::{AppHandle, Emitter, Listener, Manager, Runtime};

use crate::desk;

/// Event that sends the id of a chosen item to the page.
const MENU_EVENT: &str = "menu";
/// Event by which the page sends the labels of the items, by id.
const LABELS_EVENT: &str = "menu-words";

/// English labels from the page's catalogue.
const ENGLISH: &str = include_str!("../../ui/src/lib/strings/menuEn.json");

/// Items that the shell handles where the system has none of its own.
const QUIT: &str = "quit";
const FULL_SCREEN: &str = "full-screen";
/// Handled by the shell, so that it works if the page is broken.
const SHOW_LOG: &str = "show-log";
/// Text below the name in the About window.
const COMMENTS: &str = "about-comments";

/// A line of a menu. The id of an item is also the name of the page's command.
#[derive(Clone, Copy, Debug, PartialEq)]
enum MenuEntry {
    /// An item that the page or the shell handles, with its optional shortcut.
    Item(&'static str, Option<&'static str>),
    /// An item that the system handles and assigns a shortcut.
    System(SystemItem),
    /// A separator.
    Line,
}

/// An item that the system handles.
#[derive(Clone, Copy, Debug, PartialEq)]
enum SystemItem {
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

impl SystemItem {
    /// Returns the id of the label.
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

use MenuEntry::{Item, Line, System};

/// A menu of the menu bar: the id of its title, and its lines.
type Section = (&'static str, Vec<MenuEntry>);

const SETTINGS: MenuEntry = Item("settings", Some("CmdOrCtrl+,"));
const FIND: MenuEntry = Item("search", Some("CmdOrCtrl+F"));

const FILE: [MenuEntry; 8] = [
    Item("new-conversation", Some("CmdOrCtrl+N")),
    Line,
    Item("open-model", Some("CmdOrCtrl+O")),
    Item("open-draft", Some("CmdOrCtrl+Shift+O")),
    Line,
    Item("import", None),
    Item("export-markdown", None),
    Item("export-json", None),
];

const ANSWER: [MenuEntry; 3] =
    [Item("regenerate", Some("CmdOrCtrl+R")), Item("continue", None), Item("stop", Some("CmdOrCtrl+."))];

const VIEW: [MenuEntry; 9] = [
    Item("place-chat", Some("CmdOrCtrl+1")),
    Item("place-compare", Some("CmdOrCtrl+2")),
    Item("place-lab", Some("CmdOrCtrl+3")),
    Item("place-library", Some("CmdOrCtrl+4")),
    Line,
    Item("palette", Some("CmdOrCtrl+K")),
    Item("text-larger", Some("CmdOrCtrl+=")),
    Item("text-smaller", Some("CmdOrCtrl+-")),
    Item("text-default-size", Some("CmdOrCtrl+0")),
];

/// Returns the menus of macOS, or those of other systems.
fn sections(mac: bool) -> Vec<Section> {
    if mac { mac_sections() } else { other_sections() }
}

fn mac_sections() -> Vec<Section> {
    let application = vec![
        System(SystemItem::About),
        Line,
        SETTINGS,
        Line,
        System(SystemItem::Services),
        Line,
        System(SystemItem::Hide),
        System(SystemItem::HideOthers),
        System(SystemItem::ShowAll),
        Line,
        System(SystemItem::Quit),
    ];
    let edit = [SystemItem::Undo, SystemItem::Redo].map(System);
    let clipboard = [SystemItem::Cut, SystemItem::Copy, SystemItem::Paste, SystemItem::SelectAll].map(System);
    vec![
        (APPLICATION, application),
        ("menu-file", [&FILE[..], &[Line, System(SystemItem::CloseWindow)]].concat()),
        ("menu-edit", [&edit[..], &[Line], &clipboard, &[Line, FIND]].concat()),
        ("menu-answer", ANSWER.to_vec()),
        ("menu-view", [&VIEW[..], &[Line, System(SystemItem::FullScreen)]].concat()),
        ("menu-window", vec![System(SystemItem::Minimize), System(SystemItem::Zoom)]),
        // macOS adds a search field.
        ("menu-help", vec![Item(SHOW_LOG, None)]),
    ]
}

/// Returns the menus without an Edit menu: with one, GTK keeps Ctrl+C and Ctrl+V from the page.
fn other_sections() -> Vec<Section> {
    let end_of_file = [Line, FIND, Line, SETTINGS, Line, Item(QUIT, Some("Ctrl+Q"))];
    vec![
        ("menu-file", [&FILE[..], &end_of_file].concat()),
        ("menu-answer", ANSWER.to_vec()),
        ("menu-view", [&VIEW[..], &[Line, Item(FULL_SCREEN, Some("F11"))]].concat()),
        ("menu-help", vec![Item(SHOW_LOG, None), Line, System(SystemItem::About)]),
    ]
}

/// Title of the application menu, which macOS replaces by the application's name.
const APPLICATION: &str = "Hunch";

/// Iterates over the items that the page handles, on any system.
fn page_items() -> impl Iterator<Item = &'static str> {
    let all = sections(true).into_iter().chain(sections(false)).flat_map(|(_, entries)| entries);
    all.filter_map(|entry| match entry {
        Item(id, _) if ![QUIT, FULL_SCREEN, SHOW_LOG].contains(&id) => Some(id),
        _ => None,
    })
}

/// Labels by id. A missing label is replaced by the English one.
#[derive(Clone, Debug, Default)]
struct Labels(BTreeMap<String, String>);

impl Labels {
    /// Parses labels from the page: a JSON object of strings.
    fn read(json: &str) -> serde_json::Result<Self> {
        serde_json::from_str(json).map(Self)
    }

    fn of(&self, id: &str) -> String {
        let label = |labels: &Self| labels.0.get(id).filter(|label| !label.trim().is_empty()).cloned();
        label(self)
            .or_else(|| Self::read(ENGLISH).ok().and_then(|english| label(&english)))
            .unwrap_or_else(|| id.into())
    }
}

/// A description of the whole menu, independent of the system.
#[derive(Debug, PartialEq)]
struct Model {
    submenus: Vec<SubmenuModel>,
}

#[derive(Debug, PartialEq)]
struct SubmenuModel {
    id: &'static str,
    title: String,
    /// Lines and their titles. The title of a separator is empty.
    entries: Vec<(MenuEntry, String)>,
}

/// Describes the menu of macOS, or that of other systems, with labels.
fn model(mac: bool, labels: &Labels) -> Model {
    let titled = |entry: MenuEntry| match entry {
        Item(id, _) => (entry, labels.of(id)),
        System(own) => (entry, labels.of(own.id())),
        Line => (entry, String::new()),
    };
    let submenus = sections(mac).into_iter().map(|(id, entries)| SubmenuModel {
        id,
        title: labels.of(id),
        entries: entries.into_iter().map(titled).collect(),
    });
    Model { submenus: submenus.collect() }
}

/// Builds the menu of this system in English.
///
/// # Errors
/// If the system refuses a menu.
pub(crate) fn build<R: Runtime>(app: &AppHandle<R>) -> tauri::Result<Menu<R>> {
    draw(app, &Labels::default())
}

/// Rebuilds the menu whenever the page sends labels. Invalid labels are ignored.
pub(crate) fn watch_labels<R: Runtime>(app: &AppHandle<R>) {
    let listener = app.clone();
    app.listen_any(LABELS_EVENT, move |event| {
        if let Ok(labels) = Labels::read(event.payload()) {
            // If the system refuses the new menu, the old one stays.
            let _ = draw(&listener, &labels).and_then(|menu| listener.set_menu(menu));
        }
    });
}

/// Handles a chosen item.
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
            // Fails only if there is no page.
            let _ = app.emit(MENU_EVENT, id);
        }
        _ => {}
    }
}

/// Builds the native menu.
fn draw<R: Runtime>(app: &AppHandle<R>, labels: &Labels) -> tauri::Result<Menu<R>> {
    let mut menu = MenuBuilder::new(app);
    for submenu in model(cfg!(target_os = "macos"), labels).submenus {
        menu = menu.item(&draw_submenu(app, submenu, labels)?);
    }
    menu.build()
}

fn draw_submenu<R: Runtime>(
    app: &AppHandle<R>,
    model: SubmenuModel,
    labels: &Labels,
) -> tauri::Result<Submenu<R>> {
    // The system finds these two menus by its own ids.
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
            System(own) => submenu.item(&system_item(app, own, &title, labels)?),
        };
    }
    submenu.build()
}

/// Builds an item that the system handles.
fn system_item<R: Runtime>(
    app: &AppHandle<R>,
    own: SystemItem,
    title: &str,
    labels: &Labels,
) -> tauri::Result<PredefinedMenuItem<R>> {
    let title = Some(title);
    match own {
        SystemItem::About => PredefinedMenuItem::about(app, title, Some(about(app, labels))),
        SystemItem::Services => PredefinedMenuItem::services(app, title),
        SystemItem::Hide => PredefinedMenuItem::hide(app, title),
        SystemItem::HideOthers => PredefinedMenuItem::hide_others(app, title),
        SystemItem::ShowAll => PredefinedMenuItem::show_all(app, title),
        SystemItem::Quit => PredefinedMenuItem::quit(app, title),
        SystemItem::Undo => PredefinedMenuItem::undo(app, title),
        SystemItem::Redo => PredefinedMenuItem::redo(app, title),
        SystemItem::Cut => PredefinedMenuItem::cut(app, title),
        SystemItem::Copy => PredefinedMenuItem::copy(app, title),
        SystemItem::Paste => PredefinedMenuItem::paste(app, title),
        SystemItem::SelectAll => PredefinedMenuItem::select_all(app, title),
        SystemItem::CloseWindow => PredefinedMenuItem::close_window(app, title),
        SystemItem::FullScreen => PredefinedMenuItem::fullscreen(app, title),
        SystemItem::Minimize => PredefinedMenuItem::minimize(app, title),
        SystemItem::Zoom => PredefinedMenuItem::maximize(app, title),
    }
}

fn about<'a, R: Runtime>(app: &'a AppHandle<R>, labels: &Labels) -> AboutMetadata<'a> {
    AboutMetadata {
        name: Some("Hunch".into()),
        version: Some(app.package_info().version.to_string()),
        comments: Some(labels.of(COMMENTS)),
        license: Some(env!("CARGO_PKG_LICENSE").into()),
        icon: app.default_window_icon().cloned(),
        ..AboutMetadata::default()
    }
}

fn toggle_full_screen<R: Runtime>(app: &AppHandle<R>) {
    if let Some(window) = app.get_webview_window("main")
        && let Ok(full) = window.is_fullscreen()
    {
        // The window system may refuse. The window then stays as it is.
        let _ = window.set_fullscreen(!full);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const GERMAN: &str = include_str!("../../ui/src/lib/strings/menuDe.json");

    #[test]
    fn page_has_a_command_for_every_item() {
        // The page derives the commands of its places from this list.
        let places = include_str!("../../ui/src/lib/strings/keys.ts")
            .lines()
            .find(|line| line.starts_with("export const places ="))
            .unwrap();
        let page = include_str!("../../ui/src/lib/commands.ts");
        for item in page_items() {
            let (page, id) = item.strip_prefix("place-").map_or((page, item), |place| (places, place));
            assert!(page.contains(&format!("'{id}'")), "{item}");
        }
        for expected in ["search", "import", "export-markdown", "export-json", "regenerate"] {
            assert!(page_items().any(|item| item == expected), "{expected}");
        }
    }

    #[test]
    fn labels_of_both_languages_match_the_items() {
        let mut ids = BTreeSet::from([COMMENTS]);
        for (id, entries) in sections(true).into_iter().chain(sections(false)) {
            ids.insert(id);
            ids.extend(entries.iter().filter_map(|entry| match entry {
                Item(id, _) => Some(*id),
                System(own) => Some(own.id()),
                Line => None,
            }));
        }
        // Not translated.
        ids.remove(APPLICATION);
        for catalogue in [ENGLISH, GERMAN] {
            let labels = Labels::read(catalogue).unwrap();
            assert_eq!(labels.0.keys().map(String::as_str).collect::<BTreeSet<_>>(), ids);
            assert!(labels.0.values().all(|label| !label.trim().is_empty()));
        }
    }

    #[test]
    fn missing_labels_are_replaced_by_english() {
        let german = model(true, &Labels::read(GERMAN).unwrap());
        let titles: Vec<&str> = german.submenus.iter().map(|submenu| submenu.title.as_str()).collect();
        assert_eq!(titles, ["Hunch", "Ablage", "Bearbeiten", "Antwort", "Darstellung", "Fenster", "Hilfe"]);
        let find = german.submenus[2].entries.last().unwrap();
        assert_eq!(find, &(FIND, "Suchen…".to_owned()));
        assert_eq!(model(true, &Labels::default()), model(true, &Labels::read(ENGLISH).unwrap()));
        let odd = Labels::read(r#"{"menu-file": " ", "search": "Look", "stray": "x"}"#).unwrap();
        let other = model(false, &odd);
        assert_eq!(other.submenus[0].title, "File");
        assert!(other.submenus[0].entries.contains(&(FIND, "Look".to_owned())));
        assert!(Labels::read("[1]").is_err() && Labels::read(r#"{"a": 1}"#).is_err());
    }

    #[test]
    fn shortcuts_are_unique() {
        for mac in [true, false] {
            let entries = sections(mac).into_iter().flat_map(|(_, entries)| entries);
            let keys: Vec<_> =
                entries.filter_map(|entry| if let Item(_, keys) = entry { keys } else { None }).collect();
            assert_eq!(keys.iter().collect::<BTreeSet<_>>().len(), keys.len());
        }
    }
}
