//! Parses the fenced code blocks of a tutorial.

/// A code block of a tutorial, by its info string.
#[derive(Debug)]
pub(crate) enum Block {
    /// `rust file=src/main.rs`: the reader writes this file.
    File { path: String, text: String },
    /// `diff file=src/main.rs`: the reader applies this diff to the file.
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

/// A command and the lines of its output, in which `…` matches any text.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) command: String,
    pub(crate) output: Vec<String>,
}

pub(crate) fn parse_blocks(text: &str) -> Result<Vec<Block>, String> {
    let mut blocks = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if let Some(info) = line.strip_prefix("```") {
            let body: Vec<_> = lines.by_ref().take_while(|line| *line != "```").collect();
            blocks.push(parse_block(info, &body)?);
        }
    }
    Ok(blocks)
}

fn parse_block(info: &str, body: &[&str]) -> Result<Block, String> {
    let (language, attribute) = info.split_once(' ').unwrap_or((info, ""));
    let text = body.iter().map(|line| format!("{line}\n")).collect();
    match (language, attribute.split_once('=')) {
        ("diff", Some(("file", path))) => Ok(Block::Diff { path: path.into(), text }),
        ("console", _) if body == ["^C"] => Ok(Block::Console { run: Run::Stop, steps: Vec::new() }),
        ("console", None) => Ok(Block::Console { run: Run::Yes, steps: parse_steps(body)? }),
        ("console", Some(("run", "no"))) => Ok(Block::Console { run: Run::No, steps: parse_steps(body)? }),
        ("console", Some(("run", "background"))) => {
            Ok(Block::Console { run: Run::Background, steps: parse_steps(body)? })
        }
        (_, Some(("file", path))) => Ok(Block::File { path: path.into(), text }),
        _ => Err(format!("unknown info string of a code block: {info:?}")),
    }
}

fn parse_steps(body: &[&str]) -> Result<Vec<Step>, String> {
    let mut steps: Vec<Step> = Vec::new();
    for line in body {
        match (line.strip_prefix("$ "), steps.last_mut()) {
            (Some(command), _) => steps.push(Step { command: command.into(), output: Vec::new() }),
            (None, Some(step)) => step.output.push((*line).into()),
            (None, None) => return Err(format!("output before the first command of a block: {line:?}")),
        }
    }
    Ok(steps)
}
