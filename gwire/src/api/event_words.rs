//! An event in words, for terminals and chats. The caller makes texts of users harmless for where they are shown.

use super::EventRow;
use gmodel::gpu_amounts::milli_text;

impl EventRow {
    /// What it is about: `job 17 train (ada)`, `node n1`. Texts of users are as they are.
    pub fn subject(&self) -> String {
        let job = &self.job;
        if !job.shown_id.is_empty() {
            let tasks = match job.array_tasks.as_str() {
                "" => String::new(),
                tasks => format!("_[{tasks}]"),
            };
            return format!("job {}{tasks} {} ({})", job.shown_id, job.name, job.user);
        }
        if let Some(id) = job.job_id {
            return format!("job {id}");
        }
        if !self.gpu.is_empty() {
            return format!("{} of {}", self.gpu, self.node);
        }
        if !self.node.is_empty() {
            return format!("node {}", self.node);
        }
        format!("{} {}", self.record, self.record_name)
    }

    /// What is said of it: `FAILED 7:0, on n1`.
    pub fn message(&self) -> String {
        let run = &self.run;
        let mut parts = Vec::new();
        let mut say = |text: String| parts.push(text);
        if let Some(state) = run.state {
            let exit = run.exit_code.filter(|exit| !exit.is_success());
            let exit = exit.map(|exit| format!(" {exit}")).unwrap_or_default();
            say(format!("{}{exit}", state.long()));
        }
        if !run.nodelist.is_empty() {
            let milli = run.gpus.map_or(0, |gpus| (gpus * 1000.0).round() as u64);
            let gpus = match milli {
                0 => String::new(),
                milli => format!(", {} GPUs", milli_text(milli)),
            };
            say(format!("on {}{gpus}", run.nodelist));
        }
        for (state, tasks) in &run.states {
            say(format!("{tasks} {state}"));
        }
        if !self.changed.is_empty() {
            say(self.changed.join(", "));
        }
        if !self.reason.is_empty() {
            say(self.reason.clone());
        }
        if !self.by.is_empty() {
            say(format!("by {}", self.by));
        }
        let mut message = parts.join(", ");
        if !self.text.is_empty() {
            let colon = if message.is_empty() { "" } else { ": " };
            message = format!("{message}{colon}{}", self.text);
        }
        message
    }
}
