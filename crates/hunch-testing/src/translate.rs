//! From the Metal shading language to C++, for the simulator or for PTX. Attributes are removed, and each kernel gets
//! a function that binds its arguments. The text between is compiled as it is.

/// Kernel function that the host can name.
struct Kernel {
    /// Name for the host.
    name: String,
    /// Expression that names the function in C++: the name, with template arguments if it has any.
    function: String,
    parameters: Vec<Parameter>,
}

/// Parameter of a kernel function.
#[derive(Clone)]
struct Parameter {
    /// Type and name.
    declaration: String,
    /// Text between `[[` and `]]`.
    attribute: Option<String>,
}

/// Translates a library. `wanted` lists the kernels by their host names.
pub fn to_cpp(text: &str, wanted: &[&str]) -> String {
    let kernels = kernels(text);
    let mut cpp = String::from("#include \"metal_stdlib\"\n");
    cpp.push_str(&without_attributes(&without_instantiations(text)));
    cpp.push_str("\n#include \"runtime.h\"\n");
    cpp.push_str(
        "namespace {\nstruct Pointer { void* p; template<class T> operator T*() const { return (T*)p; } };\n\
         struct Reference { void* p; template<class T> operator T&() const { return *(T*)p; } };\n",
    );
    let mut cases = String::new();
    for (index, name) in wanted.iter().enumerate() {
        let kernel =
            kernels.iter().find(|k| k.name == *name).unwrap_or_else(|| panic!("there is no kernel {name}"));
        let mut buffers = 0;
        let arguments: Vec<String> = kernel.parameters.iter().map(|p| argument(p, &mut buffers)).collect();
        cpp.push_str(&format!("void run_{index}() {{ {}({}); }}\n", kernel.function, arguments.join(", ")));
        cases.push_str(&format!(
            "  if (!__builtin_strcmp(name, \"{name}\")) return sim::run(what, run_{index}, allocate);\n"
        ));
    }
    cpp.push_str(
        "}\nextern \"C\" __attribute__((visibility(\"default\"))) const char* sim_run(const char* name, \
         const sim::Launch* what, void* (*allocate)(size_t)) {\n",
    );
    cpp.push_str(&cases);
    cpp.push_str("  return \"no such kernel\";\n}\n");
    cpp
}

/// Returns the value that a kernel gets for a parameter. `buffers` counts those without a number.
fn argument(parameter: &Parameter, buffers: &mut usize) -> String {
    let pointer = parameter.declaration.contains('*');
    assert!(
        pointer || parameter.attribute.is_some() || parameter.declaration.contains('&'),
        "{} needs an attribute",
        parameter.declaration
    );
    let bind = |value: String| {
        if pointer { format!("Pointer{{{value}}}") } else { format!("Reference{{{value}}}") }
    };
    let index = match parameter.attribute.as_deref() {
        None => *buffers,
        Some("threadgroup(0)") => return bind("sim::launch->scratch".into()),
        Some(attribute) => match attribute.strip_prefix("buffer(") {
            Some(number) => number.trim_end_matches(')').parse().unwrap(),
            None => return position(parameter, attribute),
        },
    };
    *buffers = index + 1;
    bind(format!("sim::launch->buffers[{index}]"))
}

/// Returns the value of a parameter that is a position or an index. A kernel asks for one number or for several.
fn position(parameter: &Parameter, attribute: &str) -> String {
    let kind = parameter.declaration.split_whitespace().rev().nth(1).unwrap_or_default();
    let part = match kind.chars().last() {
        Some('3') => "",
        Some('2') => ".xy",
        _ => ".x",
    };
    format!("sim::{attribute}(){part}")
}

/// Translates a library to C++ for PTX. A kernel `x` becomes `hunch_x`, whose parameters are its buffers in order.
pub fn to_cuda_cpp(text: &str, wanted: &[&str]) -> String {
    let kernels = kernels(text);
    let mut cpp = String::from("#include \"metal_stdlib\"\n");
    cpp.push_str(&without_attributes(text));
    for name in wanted {
        let kernel =
            kernels.iter().find(|k| k.name == *name).unwrap_or_else(|| panic!("there is no kernel {name}"));
        let (mut buffers, mut arguments) = (Vec::new(), Vec::new());
        for parameter in &kernel.parameters {
            let declaration = parameter.declaration.as_str();
            let attribute = parameter.attribute.as_deref().unwrap();
            let (kind, variable) = declaration.rsplit_once(' ').unwrap();
            arguments.push(if let Some(kind) = kind.strip_suffix('&') {
                format!("*({kind} *)hunch_constants")
            } else if attribute == "threadgroup(0)" {
                format!("({kind})hunch_scratch")
            } else if attribute.starts_with("buffer(") {
                buffers.push(declaration);
                variable.to_owned()
            } else {
                position(parameter, attribute)
            });
        }
        cpp.push_str(&format!(
            "\nextern \"C\" __attribute__((nvptx_kernel)) void hunch_{name}({}) {{ {name}({}); }}\n",
            buffers.join(", "),
            arguments.join(", ")
        ));
    }
    cpp
}

/// Returns, for each buffer of a kernel, whether its type allows the kernel to write it.
pub fn written_buffers(text: &str, kernel: &str) -> Vec<bool> {
    let kernels = kernels(text);
    let kernel =
        kernels.iter().find(|k| k.name == kernel).unwrap_or_else(|| panic!("there is no kernel {kernel}"));
    let mut written = Vec::new();
    for parameter in &kernel.parameters {
        let index = match parameter.attribute.as_deref().map(|attribute| attribute.strip_prefix("buffer(")) {
            None => written.len(),
            Some(Some(number)) => number.trim_end_matches(')').parse().unwrap(),
            Some(None) => continue,
        };
        written.resize(written.len().max(index + 1), false);
        let declaration = &parameter.declaration;
        written[index] = declaration.contains("device")
            && !declaration.split(['*', '&']).next().unwrap().contains("const");
    }
    written
}

fn kernels(text: &str) -> Vec<Kernel> {
    let mut found = Vec::new();
    let starts = text.match_indices("kernel void ").map(|(at, word)| at + word.len());
    // [[kernel, max_total_threads_per_threadgroup(512)]] void name(...)
    let limited = text.match_indices("[[kernel, ").filter_map(|(at, _)| {
        let end = text[at..].find("]] void ")?;
        Some(at + end + "]] void ".len())
    });
    for at in starts.chain(limited) {
        let rest = &text[at..];
        let Some(open) = rest.find('(') else { continue };
        let name = rest[..open].trim();
        if name.is_empty() || !name.chars().all(|c| c.is_alphanumeric() || c == '_') {
            continue;
        }
        let inside = &rest[open + 1..open + 1 + closing(&rest[open + 1..])];
        let parameters = split(inside).map(parameter).collect();
        found.push(Kernel { name: name.into(), function: name.into(), parameters });
    }
    // template [[host_name("x")]] kernel type function<...>;
    for line in text.lines().filter(|line| is_instantiation(line)) {
        let name = line.split('"').nth(1).unwrap();
        let words = line.split_once("kernel ").unwrap().1.trim();
        let function = words.split_once(' ').unwrap().1.trim().trim_end_matches(';');
        let generic = function.split('<').next().unwrap();
        if let Some(kernel) = found.iter().find(|k| k.name == generic) {
            let parameters = kernel.parameters.clone();
            found.push(Kernel { name: name.into(), function: function.into(), parameters });
        }
    }
    found
}

fn is_instantiation(line: &str) -> bool {
    line.trim_start().starts_with("template [[host_name(")
}

fn without_instantiations(text: &str) -> String {
    text.lines().map(|line| if is_instantiation(line) { "\n".into() } else { format!("{line}\n") }).collect()
}

/// Removes attributes. The text after an attribute moves to its place, and lines keep their numbers.
fn without_attributes(text: &str) -> String {
    let (mut out, mut rest) = (String::new(), text);
    while let Some(at) = rest.find("[[") {
        out.push_str(&rest[..at]);
        let end = at + rest[at..].find("]]").unwrap();
        out.extend(rest[at..end].chars().filter(|c| *c == '\n'));
        rest = &rest[end + 2..];
    }
    out + rest
}

/// Returns the position of the parenthesis that closes one opened before `text`.
fn closing(text: &str) -> usize {
    let mut depth = 1;
    for (at, c) in text.char_indices() {
        depth += i32::from(c == '(') - i32::from(c == ')');
        if depth == 0 {
            return at;
        }
    }
    panic!("a parenthesis is not closed");
}

/// Splits a list of parameters at its commas.
fn split(parameters: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0;
    parameters.split(move |c| {
        depth += i32::from(matches!(c, '(' | '[' | '<')) - i32::from(matches!(c, ')' | ']' | '>'));
        c == ',' && depth == 0
    })
}

fn parameter(text: &str) -> Parameter {
    match text.split_once("[[") {
        None => Parameter { declaration: text.trim().into(), attribute: None },
        Some((declaration, attribute)) => Parameter {
            declaration: declaration.trim().into(),
            attribute: Some(attribute.trim().trim_end_matches("]]").trim().into()),
        },
    }
}
