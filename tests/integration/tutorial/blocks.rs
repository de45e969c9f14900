//! The fenced blocks of a tutorial.

/// A block of a tutorial, and what its reader does with it.
#[derive(Debug)]
pub(crate) enum Block {
    /// `rust file=src/main.rs`: the reader writes this file.
    File { path: String, text: String },
    /// `diff file=src/main.rs`: the reader changes these lines of the file.
    Diff { path: String, text: String },
    /// `console`: the reader enters these commands.
    Console { run: Run, steps: Vec<Step> },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Run {
    Yes,
    /// `run=no`: a command that a test cannot run.
    No,
    /// `run=background`: a command that runs until Ctrl-C.
    Background,
    /// `^C`: Ctrl-C.
    Stop,
}

/// A command and its output. `…` matches any output.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) command: String,
    pub(crate) prints: Vec<String>,
}

pub(crate) fn blocks(text: &str) -> Result<Vec<Block>, String> {
    let mut blocks = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if let Some(info) = line.strip_prefix("```") {
            let body: Vec<_> = lines.by_ref().take_while(|line| *line != "```").collect();
            blocks.push(block(info, &body)?);
        }
    }
    Ok(blocks)
}

fn block(info: &str, body: &[&str]) -> Result<Block, String> {
    let (language, attribute) = info.split_once(' ').unwrap_or((info, ""));
    let text = body.iter().map(|line| format!("{line}\n")).collect();
    match (language, attribute.split_once('=')) {
        ("diff", Some(("file", path))) => Ok(Block::Diff { path: path.into(), text }),
        ("console", _) if body == ["^C"] => Ok(Block::Console { run: Run::Stop, steps: Vec::new() }),
        ("console", None) => Ok(Block::Console { run: Run::Yes, steps: steps(body)? }),
        ("console", Some(("run", "no"))) => Ok(Block::Console { run: Run::No, steps: steps(body)? }),
        ("console", Some(("run", "background"))) => {
            Ok(Block::Console { run: Run::Background, steps: steps(body)? })
        }
        (_, Some(("file", path))) => Ok(Block::File { path: path.into(), text }),
        _ => Err(format!("what is a reader to do with a block of {info:?}?")),
    }
}

fn steps(body: &[&str]) -> Result<Vec<Step>, String> {
    let mut steps: Vec<Step> = Vec::new();
    for line in body {
        match (line.strip_prefix("$ "), steps.last_mut()) {
            (Some(command), _) => steps.push(Step { command: command.into(), prints: Vec::new() }),
            (None, Some(step)) => step.prints.push((*line).into()),
            (None, None) => return Err(format!("{line:?} is printed before any command")),
        }
    }
    Ok(steps)
}
