//! The native menu. What the window's page has to do goes to it as one event, `menu`, whose payload
//! is the item's id; what the system or the shell does itself stays here.

use tauri::menu::{
    AboutMetadata, HELP_SUBMENU_ID, Menu, MenuBuilder, MenuEvent, MenuItem, MenuItemBuilder, Submenu,
    SubmenuBuilder, WINDOW_SUBMENU_ID,
};
use tauri::{AppHandle, Emitter, Manager, Runtime};

/// The event that carries the id of a chosen item to the page.
const MENU_EVENT: &str = "menu";

/// Items the page acts on: id, title, shortcut. The ids are part of the wire.
const FILE_ITEMS: [(&str, &str, &str); 4] = [
    ("new-conversation", "New Conversation", "CmdOrCtrl+N"),
    ("open-model", "Open Model\u{2026}", "CmdOrCtrl+O"),
    ("open-draft", "Open Draft\u{2026}", "CmdOrCtrl+Shift+O"),
    ("stop", "Stop Answer", "CmdOrCtrl+."),
];

/// Opens what the page calls its settings; a Mac has it beside the application's name.
const SETTINGS: (&str, &str, &str) = ("settings", "Settings\u{2026}", "CmdOrCtrl+,");

/// More items the page acts on, for the View menu.
const VIEW_ITEMS: [(&str, &str, &str); 8] = [
    ("place-chat", "Chat", "CmdOrCtrl+1"),
    ("place-compare", "Compare", "CmdOrCtrl+2"),
    ("place-lab", "Lab", "CmdOrCtrl+3"),
    ("place-library", "Library", "CmdOrCtrl+4"),
    ("palette", "Commands\u{2026}", "CmdOrCtrl+K"),
    ("text-larger", "Larger Text", "CmdOrCtrl+="),
    ("text-smaller", "Smaller Text", "CmdOrCtrl+-"),
    ("text-usual", "Usual Text Size", "CmdOrCtrl+0"),
];

/// Items the shell acts on where the system has none of its own.
const QUIT: &str = "quit";
const FULL_SCREEN: &str = "full-screen";

/// The whole menu, as the platform wants it.
///
/// # Errors
/// When the system refuses a menu.
pub(crate) fn build<R: Runtime>(app: &AppHandle<R>) -> tauri::Result<Menu<R>> {
    if cfg!(target_os = "macos") { mac_menu(app) } else { other_menu(app) }
}

/// Acts on a chosen item.
pub(crate) fn chosen<R: Runtime>(app: &AppHandle<R>, event: MenuEvent) {
    match event.id().as_ref() {
        QUIT => app.exit(0),
        FULL_SCREEN => toggle_full_screen(app),
        id if page_items().any(|item| item.0 == id) => {
            // Fails only when no page is there to hear it.
            let _ = app.emit(MENU_EVENT, id);
        }
        _ => {}
    }
}

/// Every item the page acts on.
fn page_items() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    FILE_ITEMS.into_iter().chain([SETTINGS]).chain(VIEW_ITEMS)
}

fn mac_menu<R: Runtime>(app: &AppHandle<R>) -> tauri::Result<Menu<R>> {
    let application = SubmenuBuilder::new(app, "Hunch")
        .about(Some(about(app)))
        .separator()
        .item(&item(app, SETTINGS)?)
        .separator()
        .services()
        .separator()
        .hide()
        .hide_others()
        .show_all()
        .separator()
        .quit()
        .build()?;
    let file = submenu(app, "File", &FILE_ITEMS)?.separator().close_window().build()?;
    let edit = SubmenuBuilder::new(app, "Edit")
        .undo()
        .redo()
        .separator()
        .cut()
        .copy()
        .paste()
        .select_all()
        .build()?;
    let view = submenu(app, "View", &VIEW_ITEMS)?.separator().fullscreen().build()?;
    let window = SubmenuBuilder::with_id(app, WINDOW_SUBMENU_ID, "Window").minimize().maximize().build()?;
    // The system fills this one with its search field.
    let help = Submenu::with_id(app, HELP_SUBMENU_ID, "Help", true)?;
    MenuBuilder::new(app).items(&[&application, &file, &edit, &view, &window, &help]).build()
}

/// No Edit menu: GTK would take Ctrl+C and Ctrl+V away from the page, which handles them itself.
fn other_menu<R: Runtime>(app: &AppHandle<R>) -> tauri::Result<Menu<R>> {
    let quit = item(app, (QUIT, "Quit", "Ctrl+Q"))?;
    let settings = item(app, SETTINGS)?;
    let file =
        submenu(app, "File", &FILE_ITEMS)?.separator().item(&settings).separator().item(&quit).build()?;
    let full_screen = item(app, (FULL_SCREEN, "Full Screen", "F11"))?;
    let view = submenu(app, "View", &VIEW_ITEMS)?.separator().item(&full_screen).build()?;
    let help = SubmenuBuilder::new(app, "Help").about_with_text("About Hunch", Some(about(app))).build()?;
    MenuBuilder::new(app).items(&[&file, &view, &help]).build()
}

/// The beginning of a submenu: what the page acts on.
fn submenu<'m, R: Runtime>(
    app: &'m AppHandle<R>,
    name: &str,
    items: &[(&str, &str, &str)],
) -> tauri::Result<SubmenuBuilder<'m, R, AppHandle<R>>> {
    let mut menu = SubmenuBuilder::new(app, name);
    for &one in items {
        menu = menu.item(&item(app, one)?);
    }
    Ok(menu)
}

fn item<R: Runtime>(
    app: &AppHandle<R>,
    (id, title, shortcut): (&str, &str, &str),
) -> tauri::Result<MenuItem<R>> {
    MenuItemBuilder::with_id(id, title).accelerator(shortcut).build(app)
}

fn about<R: Runtime>(app: &AppHandle<R>) -> AboutMetadata<'_> {
    AboutMetadata {
        name: Some("Hunch".into()),
        version: Some(app.package_info().version.to_string()),
        comments: Some("Speculative decoding you can see".into()),
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
    use super::page_items;

    #[test]
    fn the_page_acts_on_every_item_it_is_sent() {
        let places = include_str!("../../ui/src/lib/places.ts");
        let page = include_str!("../../ui/src/lib/commands.ts");
        for (id, title, _) in page_items() {
            // The commands that lead to a place are made of the places' names.
            let (page, id) = id.strip_prefix("place-").map_or((page, id), |place| (places, place));
            assert!(page.contains(&format!("'{id}'")), "{title}");
        }
    }
}
