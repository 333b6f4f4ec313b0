//! Kills a process during long operations of the store and checks that nothing is lost. Kills while an answer streams
//! are in `tests/it/persistence.rs`.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rand::Rng;

use super::messages::tests::{finished, round, settings};
use super::{Store, migrations};
use crate::api::MessageState;
use crate::event::GenerationEvent;

const FOLDER: &str = "HUNCH_TEST_KILLED_IN";
/// Number of kills that must fall inside of an operation.
const KILLS: usize = 25;
/// Number of kills after which the test fails, because too few fell inside.
const MOST_KILLS: usize = 500;

/// Number of answers or conversations compared after each kill.
const LATEST: usize = 4;

/// Operations that children began and ended, by number, over all kills.
#[derive(Default)]
struct Output {
    begun: Vec<i64>,
    ended: Vec<i64>,
}

impl Output {
    /// Reads a line of a child. Returns whether [`say`] wrote it.
    fn take(&mut self, line: &str) -> bool {
        // The test harness may have printed on the same line before.
        let Some((_, said)) = line.split_once("said ") else { return false };
        let (what, number) = said.split_once(' ').unwrap();
        let list = if what == "begin" { &mut self.begun } else { &mut self.ended };
        list.push(number.parse().unwrap());
        true
    }
}

/// Reports from a child that an operation begins or has ended.
fn say(what: &str, number: i64) {
    println!("said {what} {number}");
}

/// Runs the endless `work` in a child process and kills it inside of an operation, [`KILLS`] times. Calls `check` with
/// the folder after each kill.
fn kill_inside(name: &str, prepare: fn(&Path), work: fn(&Path), mut check: impl FnMut(&Path, &Output)) {
    if let Some(folder) = std::env::var_os(FOLDER) {
        return work(Path::new(&folder));
    }
    let folder = tempfile::tempdir().unwrap();
    prepare(folder.path());
    let mut random = rand::rng();
    let (mut inside, mut kills) = (0, 0);
    let mut output = Output::default();
    // Duration of an operation, from those that ended.
    let mut usual = Duration::from_millis(20);
    while inside < KILLS {
        kills += 1;
        assert!(kills <= MOST_KILLS, "only {inside} kills fell inside of it");
        let mut child = child(name, folder.path());
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let mut next = |output: &mut Output| lines.by_ref().any(|line| output.take(&line));
        // Some operations are left alone, so that each kill meets another state.
        for _ in 0..random.random_range(0..3) {
            assert!(next(&mut output), "the child ended by itself");
            let begun = Instant::now();
            assert!(next(&mut output), "the child ended by itself");
            usual = (usual + begun.elapsed()) / 2;
        }
        assert!(next(&mut output), "the child ended by itself");
        std::thread::sleep(usual.mul_f64(random.random_range(0.0..1.1)));
        child.kill().unwrap();
        child.wait().unwrap();
        let ended = output.ended.len();
        while next(&mut output) {}
        inside += usize::from(output.ended.len() == ended);
        check(folder.path(), &output);
    }
    println!("{name}: {inside} kills inside, {kills} in all, nothing lost");
}

fn child(name: &str, folder: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("store::kill_tests::{name}"), "--nocapture"])
        .env(FOLDER, folder)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// Opens the file as at a start.
fn open(folder: &Path) -> Store {
    Store::open(&folder.join("conversations.db")).unwrap()
}

/// Opens the file as at the next start and checks its structure.
fn reopen(folder: &Path) -> Store {
    let store = open(folder);
    Store::check(&folder.join("conversations.db")).unwrap();
    store
}

/// Makes the events of an answer of about 50 KB.
fn events() -> Vec<GenerationEvent> {
    (0..80).map(|number| round(&format!("{number} ").repeat(200))).chain([finished()]).collect()
}

/// Writes an answer up to its end, which is not reported yet.
fn write_answer(store: &Store, conversation: i64) -> i64 {
    let question = store.add_question(conversation, None, "Why?", 1).unwrap();
    let answer = store.begin_answer(conversation, question, &settings(), 1).unwrap();
    events().chunks(20).for_each(|events| store.append_events(answer, events).unwrap());
    answer
}

fn assert_answer_is_whole(store: &Store, answer: i64) {
    let (_, message) = store.message(answer).unwrap();
    assert!(store.events(answer).unwrap() == events(), "answer {answer} has lost events");
    let events = events();
    let text = events.iter().flat_map(GenerationEvent::tokens).map(|token| token.text.as_str());
    assert!(message.content == text.collect::<String>(), "answer {answer} has lost text");
}

/// Number of answers in the imported conversation.
const ANSWERS: usize = 6;

/// Writes a conversation to `chat.json`.
fn export_chat(folder: &Path) {
    let store = Store::in_memory().unwrap();
    let conversation = store.create_conversation(1).unwrap();
    for _ in 0..ANSWERS {
        let answer = write_answer(&store, conversation);
        store.finish_answer(answer, MessageState::Complete, 2).unwrap();
    }
    std::fs::write(folder.join("chat.json"), store.export_json(conversation).unwrap()).unwrap();
}

fn import_chat(store: &Store, folder: &Path) -> i64 {
    store.import_json(std::fs::File::open(folder.join("chat.json")).unwrap()).unwrap()
}

fn assert_chat_is_whole(store: &Store, conversation: i64) {
    let messages = store.conversation(conversation).unwrap().messages;
    assert_eq!(messages.len(), 2 * ANSWERS, "conversation {conversation} has lost messages");
    assert_answer_is_whole(store, messages[1].id);
    assert_answer_is_whole(store, messages[2 * ANSWERS - 1].id);
}

#[test]
fn loses_no_answer_when_killed_while_it_is_finished() {
    let work = |folder: &Path| {
        let store = open(folder);
        let conversation = store.conversations().unwrap()[0].id;
        loop {
            let answer = write_answer(&store, conversation);
            say("begin", answer);
            store.finish_answer(answer, MessageState::Complete, 2).unwrap();
            say("end", answer);
        }
    };
    kill_inside(
        "loses_no_answer_when_killed_while_it_is_finished",
        |folder| assert!(open(folder).create_conversation(1).is_ok()),
        work,
        |folder, output| {
            let store = reopen(folder);
            output.begun.iter().rev().take(LATEST).for_each(|answer| assert_answer_is_whole(&store, *answer));
            let state = |answer: &i64| store.message(*answer).unwrap().1.state;
            assert!(output.ended.iter().all(|answer| state(answer) == MessageState::Complete));
            assert!(output.begun.iter().all(|answer| state(answer) != MessageState::Streaming));
        },
    );
}

#[test]
fn imports_whole_or_not_at_all_when_killed() {
    let work = |folder: &Path| {
        let store = open(folder);
        for number in 0.. {
            say("begin", number);
            import_chat(&store, folder);
            say("end", number);
        }
    };
    kill_inside("imports_whole_or_not_at_all_when_killed", export_chat, work, |folder, output| {
        let store = reopen(folder);
        let conversations = store.conversations().unwrap();
        assert!(
            (output.ended.len()..=output.begun.len()).contains(&conversations.len()),
            "{}",
            conversations.len()
        );
        conversations.iter().take(LATEST).for_each(|entry| assert_chat_is_whole(&store, entry.id));
        let messages: i64 =
            store.connection().query_row("SELECT count(*) FROM messages", [], |row| row.get(0)).unwrap();
        assert_eq!(messages as usize, 2 * ANSWERS * conversations.len());
    });
}

#[test]
fn keeps_other_conversations_when_killed_while_deleted_ones_are_purged() {
    let work = |folder: &Path| {
        let store = open(folder);
        for number in 0.. {
            store.delete_conversation(import_chat(&store, folder), 3).unwrap();
            say("begin", number);
            store.purge_deleted().unwrap();
            store.give_back_room().unwrap();
            say("end", number);
        }
    };
    kill_inside(
        "keeps_other_conversations_when_killed_while_deleted_ones_are_purged",
        |folder| {
            export_chat(folder);
            import_chat(&open(folder), folder);
        },
        work,
        |folder, _| {
            let store = reopen(folder);
            let kept = store.conversations().unwrap();
            kept.iter().take(LATEST).for_each(|entry| assert_chat_is_whole(&store, entry.id));
            store.purge_deleted().unwrap();
            let messages: i64 =
                store.connection().query_row("SELECT count(*) FROM messages", [], |row| row.get(0)).unwrap();
            // An imported chat that is not deleted yet is an ordinary one.
            assert!(
                !kept.is_empty() && messages as usize == 2 * ANSWERS * kept.len(),
                "{messages} of {} chats",
                kept.len()
            );
        },
    );
}

#[test]
fn brings_old_file_up_to_date_when_killed_in_the_middle() {
    const MESSAGES: usize = 3000;
    let work = |folder: &Path| {
        for number in 0.. {
            for part in ["", "-wal", "-shm", "-journal"] {
                let _ = std::fs::remove_file(folder.join(format!("conversations.db{part}")));
            }
            std::fs::copy(folder.join("old.db"), folder.join("copied.db")).unwrap();
            std::fs::rename(folder.join("copied.db"), folder.join("conversations.db")).unwrap();
            say("begin", number);
            drop(open(folder));
            say("end", number);
        }
    };
    let complete = |store: &Store| {
        assert_eq!(store.conversation(1).unwrap().branch().len(), MESSAGES);
        assert_eq!(store.search("word2999").unwrap().len(), 1);
    };
    kill_inside(
        "brings_old_file_up_to_date_when_killed_in_the_middle",
        |folder| drop(migrations::tests::old_file(&folder.join("old.db"), 1, MESSAGES as i64)),
        work,
        |folder, _| {
            // The child may have just removed it to begin again.
            if folder.join("conversations.db").exists() {
                complete(&reopen(folder));
            }
        },
    );
}
