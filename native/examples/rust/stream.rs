//! A complete host of libqwen3 in Rust: several requests at once, each read by a thread of its own.
//!
//!   stream [--max-tokens N] [--seed N] [--take N] MODEL_DIR PROMPT...
//!
//! Each PROMPT is a list of token ids, like "9707 11 1879". Standard output has a line per event: "token PROMPT_NUMBER
//! ID" or "end PROMPT_NUMBER REASON TOKENS". With --seed tokens are drawn at temperature 1, else the choice is greedy;
//! with --take the last prompt would run until the context is full, and is cancelled after N tokens.

mod qwen3;

use qwen3::{ffi, Engine, Sampling, Stream};
use std::collections::HashMap;
use std::io::{stdout, Write};
use std::{env, process, thread};

const USAGE: &str = "usage: stream [--max-tokens N] [--seed N] [--take N] MODEL_DIR PROMPT...";
const REASONS: [&str; 6] = ["none", "stop", "length", "cancelled", "error", "matcher"]; // qwen3_finish_reason

/// Prints a stream's events; cancels it after `take` tokens. Where nobody reads them, returning drops and cancels it.
fn print(which: usize, mut stream: Stream, take: Option<i64>) -> std::io::Result<()> {
    while let Some(event) = stream.next() {
        if event.kind == ffi::EVENT_TOKEN {
            writeln!(stdout(), "token {} {}", which, event.token)?;
            if take == Some(event.index + 1) {
                stream.cancel();
            }
        } else if event.kind == ffi::EVENT_FINISHED {
            let reason = REASONS.get(event.finish_reason as usize).unwrap_or(&"unknown");
            writeln!(stdout(), "end {} {} {}", which, reason, event.n_generated)?;
        } // kinds of later versions are skipped
    }
    Ok(())
}

fn run(arguments: Vec<String>) -> Result<(), String> {
    let (mut options, mut rest) = (HashMap::new(), Vec::new());
    let mut words = arguments.into_iter();
    while let Some(word) = words.next() {
        if ["--max-tokens", "--seed", "--take"].contains(&word.as_str()) {
            options.insert(word, words.next().and_then(|value| value.parse::<i64>().ok()).ok_or(USAGE)?);
        } else {
            rest.push(word);
        }
    }
    let (model_dir, prompts) = rest.split_first().filter(|(_, prompts)| !prompts.is_empty()).ok_or(USAGE)?;
    let engine = Engine::open(model_dir)?;
    let mut streams = Vec::new();
    for (which, text) in prompts.iter().enumerate() {
        let ids: Result<Vec<i32>, _> = text.split_whitespace().map(str::parse).collect();
        let prompt = ids.map_err(|_| format!("\"{}\" is not a list of token ids", text))?;
        let take = options.get("--take").copied().filter(|_| which + 1 == prompts.len());
        let sampling = Sampling {
            max_tokens: if take.is_some() { -1 } else { *options.get("--max-tokens").unwrap_or(&24) },
            temperature: if options.contains_key("--seed") { 1.0 } else { 0.0 },
            seed: *options.get("--seed").unwrap_or(&0) as u64,
            ignore_eos: take.is_some(),
        };
        streams.push((which, engine.submit(&prompt, &sampling)?, take)); // an error drops, and so cancels, those before
    }
    thread::scope(|scope| {
        for (which, stream, take) in streams {
            scope.spawn(move || print(which, stream, take));
        }
    });
    Ok(())
}

fn main() {
    if let Err(sentence) = run(env::args().skip(1).collect()) {
        eprintln!("stream: {}", sentence);
        process::exit(1);
    }
}
