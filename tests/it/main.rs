//! Every integration test, in one binary: linking is what costs time.

#![allow(clippy::unwrap_used)]

mod alloc_count;
mod app;
mod architecture;
mod architectures;
mod attachments;
mod chosen_texts;
mod cli;
mod compare;
mod decoder;
mod default_model;
mod distil;
mod downloads;
mod draft_window;
mod gguf_fuzz;
mod gpu_pairs;
mod heads;
mod hostile_templates;
// Connections over TLS are tested on Linux, where a process can be given what it trusts.
#[cfg_attr(not(target_os = "linux"), allow(dead_code))]
mod hub;
mod lab;
mod library;
mod loading;
mod low_bit;
mod model_files;
mod model_folders;
mod mtp;
mod output_distribution;
mod own_server;
mod pairs;
mod persistence;
mod published_heads;
mod quantisations;
mod recorded_servers;
mod recurrent;
mod release;
mod remote;
mod remote_answers;
mod remote_streams;
mod reuse;
mod schema;
mod serve;
mod serve_limits;
mod serve_models;
mod serve_responses;
mod serve_thinking;
mod serve_tools;
mod support;
mod text;
mod training;
mod translated;
