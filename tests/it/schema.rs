//! Test of the generated TypeScript.

use std::path::Path;

use hunch::api::schema::typescript;

#[test]
fn generated_typescript_is_current() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("ui/src/lib/ipc/schema.gen.ts");
    let stored = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    assert!(
        stored == typescript(),
        "schema.gen.ts is out of date. Run `cargo run --bin hunch -- schema > ui/src/lib/ipc/schema.gen.ts`."
    );
}
