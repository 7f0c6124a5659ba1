//! The table of a job's keys that may change after submission, and of the texts of its request.
//!
//! [`JobChange`], its reading, its application and its sentence are made of the table. So are the words of `gadm job update`,
//! the bounds on texts, and what listings show of a text. Whether a change is allowed is the core's to decide.
//! Source of the words: scontrol(1), `update job`.

use crate::binding::GpuBind;
use crate::checkpoint::CheckpointSpec;
use crate::dependency::Dependency;
use crate::duration::squeue_time;
use crate::job::JobSpec;
use crate::licence;
use crate::request_change::RequestChange;
use crate::suggest::did_you_mean;
use crate::time::{Timestamp, parse_rfc3339};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Display;

/// A key that may change.
#[derive(Clone, Copy, Debug)]
pub struct JobKey {
    /// In the body of `POST /v1/jobs/update`.
    pub key: &'static str,
    /// Of `gadm job update`, in any case; Slurm's spelling comes first.
    pub words: &'static [&'static str],
    /// How the word's value is written.
    pub form: KeyForm,
    pub right: ChangeRight,
}

/// How a value is written, in words and in JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyForm {
    Text,
    /// Null or an empty text is none.
    OptionalText,
    /// Seconds; null is UNLIMITED.
    Limit,
    /// Seconds; null is none.
    OptionalSeconds,
    /// A whole number, also negative.
    Number,
    Count,
    OptionalCount,
    Flag,
    /// An instant from which on.
    Begin,
    /// An instant until which; null is none.
    OptionalEnd,
    /// A part of [`RequestChange`], with a grammar of its own.
    RequestPart,
}

/// Who may change a key, and while the job is in which state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeRight {
    Owner,
    /// The owner, of a pending job.
    WhilePending,
    Operator,
}

/// A text of a request, one line, which listings show as it is.
#[derive(Clone, Copy, Debug)]
pub struct JobText {
    /// In the request, in rows of the API, and as an option of gsub.
    pub key: &'static str,
    /// In `scontrol show job` and in sacct.
    pub word: &'static str,
    /// In messages.
    pub said: &'static str,
    pub max_bytes: usize,
    /// Of its column in the queue; `None` of a text that has a meaning of its own.
    pub title: Option<&'static str>,
    pub of: fn(&JobSpec) -> &String,
    pub field: fn(&mut JobSpec) -> &mut String,
}

impl JobText {
    /// The texts that nothing reads but listings.
    pub fn carried() -> impl Iterator<Item = &'static Self> {
        TEXTS.iter().filter(|text| text.title.is_some())
    }
}

impl JobKey {
    /// By a word of `gadm job update`.
    pub fn of_word(word: &str) -> Option<&'static Self> {
        let mut keys = KEYS.iter();
        keys.find(|key| {
            key.words
                .iter()
                .any(|known| known.eq_ignore_ascii_case(word))
        })
    }
}

macro_rules! job_keys {
    (
        keys { $($field:ident: $form:ident $key:literal $words:expr, $said:literal $right:ident
            $(|$spec:ident| $place:expr $(, $most:literal $title:expr)?)?;)+ }
        request { $($part:literal $part_words:expr;)+ }
    ) => {
        /// A change of a job's request by its owner or an operator; stored in events.
        #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(default)]
        pub struct JobChange {
            $(
                #[doc = $said]
                #[serde(skip_serializing_if = "Option::is_none", with = "present")]
                pub $field: Option<<form::$form as ChangeForm>::Value>,
            )+
            /// Nodes, tasks, CPUs, memory, GPUs, and where.
            #[serde(skip_serializing_if = "RequestChange::is_empty")]
            pub request: RequestChange,
        }

        /// All keys that may change.
        pub const KEYS: &[JobKey] = &[
            $(JobKey { key: $key, words: &$words, form: form::$form::FORM, right: ChangeRight::$right },)+
            $(JobKey { key: $part, words: &$part_words, form: KeyForm::RequestPart, right: ChangeRight::WhilePending },)+
        ];

        /// The texts of a request beside its name.
        pub const TEXTS: &[JobText] = &[$($($(JobText {
            key: $key,
            word: $words[0],
            said: $said,
            max_bytes: $most,
            title: $title,
            of: |$spec| &$place,
            field: |$spec| &mut $place,
        },)?)?)+];

        impl JobChange {
            /// Takes the value of a key from JSON.
            ///
            /// # Errors
            /// The key is unknown, or the value is not in its form.
            pub fn set(&mut self, key: &str, value: &Value) -> Result<(), String> {
                match key {
                    $($key => self.$field = Some(form::$form::read(key, value)?),)+
                    _ if KEYS.iter().any(|known| known.key == key) => {
                        let text = match value {
                            Value::Null => String::new(),
                            Value::Number(number) => number.to_string(),
                            other => text_of(key, other)?,
                        };
                        self.request.set(key, &text).map_err(|why| format!("{key}: {why}"))?;
                    }
                    _ => {
                        let guess = did_you_mean(key, KEYS.iter().map(|known| known.key));
                        return Err(format!("{key:?} of a job cannot be changed.{guess} Keys: {}", all_keys()));
                    }
                }
                Ok(())
            }

            /// Writes the change into a request. Time limit, nice value, begin and running tasks stand beside the request.
            pub fn apply(&self, spec: &mut JobSpec) {
                $($(if let Some(new) = &self.$field {
                    let $spec = &mut *spec;
                    form::$form::put(&mut $place, new);
                })?)+
                self.request.apply(&mut spec.common.request);
            }

            /// What changes, each with its new value in words.
            pub fn words(&self) -> Vec<(&'static str, String)> {
                let mut words = Vec::new();
                $(words.extend(self.$field.as_ref().map(|new| ($said, form::$form::words(new))));)+
                words.extend(self.request.words());
                words
            }

            /// The first part that only a pending job takes.
            pub fn pending_only(&self) -> Option<&'static str> {
                $(if self.$field.is_some() && ChangeRight::$right == ChangeRight::WhilePending {
                    return Some($said);
                })+
                (!self.request.is_empty()).then_some("size")
            }

            /// What a running job takes of the change.
            pub fn for_running(self) -> Self {
                Self {
                    $($field: self.$field.filter(|_| ChangeRight::$right != ChangeRight::WhilePending),)+
                    request: RequestChange::default(),
                }
            }

            /// The new texts that have one line: names and remarks.
            pub fn texts(&self) -> impl Iterator<Item = &String> {
                [$(self.$field.as_ref().and_then(form::$form::line)),+].into_iter().flatten()
            }
        }
    };
}

job_keys! {
    // Field as stored: form, key of the API, words of `gadm job update`, name in messages, right;
    // of a part of the request its place; of a text its most bytes, and its title where listings alone read it.
    keys {
        limit_secs: TimeLimit "time_limit_secs" ["TimeLimit", "Time"], "time limit" Owner;
        nice: Nice "nice" ["Nice"], "nice" Owner;
        name: Text "name" ["JobName", "Name"], "name" Owner |spec| spec.name;
        comment: Text "comment" ["Comment"], "comment" Owner |spec| spec.common.comment, 4096 Some("COMMENT");
        // One, or several: `a,b`.
        partition: Text "partition" ["Partition"], "partition" WhilePending |spec| spec.common.partition, 255 None;
        account: Text "account" ["Account"], "account" WhilePending |spec| spec.common.account, 255 None;
        qos: Text "qos" ["QOS"], "QOS" WhilePending |spec| spec.common.qos, 255 None;
        eligible: Begin "begin" ["StartTime", "EligibleTime", "Begin"], "begin time" WhilePending;
        requeue: FlagOrDefault "requeue" ["Requeue"], "requeue" Owner |spec| spec.common.requeue;
        // Tasks of an array that may run at once; 0 is no cap.
        max_running: RunningTasks "max_running" ["ArrayTaskThrottle"], "tasks at once" Owner;
        dependency: DependencyList "dependency" ["Dependency"], "dependency" WhilePending |spec| spec.common.dependency;
        licences: LicenceList "licences" ["Licenses", "Licences"], "licences" WhilePending |spec| spec.common.licences;
        // Empty: outside of reservations.
        reservation: OptionalName "reservation" ["ReservationName", "Reservation"], "reservation" WhilePending |spec| spec.common.reservation;
        // 0 holds the job, which its owner may do, too.
        priority: Priority "priority" ["Priority"], "priority" Operator |spec| spec.common.priority;
        borrow: FlagOrDefault "borrow" ["Borrow"], "borrowing" Owner |spec| spec.common.borrow;
        deadline: Deadline "deadline" ["Deadline"], "deadline" WhilePending |spec| spec.common.deadline;
        time_min_secs: LeastTime "time_min_secs" ["TimeMin"], "least time" WhilePending |spec| spec.common.time_min_secs;
        checkpoint: Checkpoint "checkpoint" ["Checkpoint"], "checkpoint" Owner |spec| spec.common.checkpoint;
        tres_bind: TresBind "tres_bind" ["TresBind"], "binding of GPUs" WhilePending |spec| spec.common.tres_bind, 16384 None;
        idle_exempt: Flag "idle_exempt" ["IdleExempt", "idle_exempt"], "exemption from the idle policy" Operator |spec| spec.common.idle_exempt;
    }
    request {
        "nodes" ["NumNodes", "Nodes"];
        "ntasks" ["NumTasks", "NTasks"];
        "ntasks_per_node" ["TasksPerNode", "NTasksPerNode"];
        "cpus" ["NumCPUs"];
        "cpus_per_task" ["CPUsPerTask", "CPUs/Task"];
        "mem_per_node" ["MinMemoryNode", "Mem"];
        "mem_per_cpu" ["MinMemoryCPU", "MemPerCPU"];
        "mem_per_gpu" ["MemPerGPU"];
        "gpus" ["Gpus", "TresPerJob"];
        "gpus_per_node" ["TresPerNode", "GpusPerNode", "Gres"];
        "gpus_per_task" ["TresPerTask", "GpusPerTask"];
        "constraint" ["Features"];
        "nodelist" ["ReqNodeList", "NodeList"];
        "exclude" ["ExcNodeList"];
    }
}

impl JobChange {
    /// What of the change holds for all components of a job of unlike parts, whichever was named.
    pub fn of_all_parts(&self) -> Self {
        Self {
            limit_secs: self.limit_secs,
            nice: self.nice,
            name: self.name.clone(),
            account: self.account.clone(),
            qos: self.qos.clone(),
            eligible: self.eligible,
            requeue: self.requeue,
            priority: self.priority,
            borrow: self.borrow,
            deadline: self.deadline,
            checkpoint: self.checkpoint.clone(),
            idle_exempt: self.idle_exempt,
            ..Self::default()
        }
    }

    /// The change has a part that [`JobChange::apply`] writes.
    pub fn changes_request(&self) -> bool {
        let beside = Self {
            limit_secs: self.limit_secs,
            nice: self.nice,
            eligible: self.eligible,
            max_running: self.max_running,
            ..Self::default()
        };
        *self != beside
    }
}

/// The keys that may change, for messages.
pub fn all_keys() -> String {
    let keys: Vec<&str> = KEYS.iter().map(|key| key.key).collect();
    keys.join(", ")
}

/// How the values of a key are read from JSON, said, and written into a request.
pub trait ChangeForm {
    const FORM: KeyForm;
    /// As stored with the change.
    type Value: Clone + Into<Self::Field>;
    /// As it stands in the request.
    type Field;

    /// # Errors
    /// The value is not in this form.
    fn read(key: &str, value: &Value) -> Result<Self::Value, String>;

    fn words(value: &Self::Value) -> String;

    fn put(field: &mut Self::Field, value: &Self::Value) {
        *field = value.clone().into();
    }

    /// The text, of a form with one line.
    fn line(_value: &Self::Value) -> Option<&String> {
        None
    }
}

/// The forms that the table names.
mod form {
    use super::*;

    macro_rules! forms {
        ($($name:ident $form:ident $value:ty => $field:ty {
            $(null $none:expr;)? |$key:ident, $json:ident| $read:expr; |$new:ident| $words:expr $(; $put:item)*
        })+) => {
            $(pub enum $name {}
            impl ChangeForm for $name {
                const FORM: KeyForm = KeyForm::$form;
                type Value = $value;
                type Field = $field;
                fn read($key: &str, $json: &Value) -> Result<$value, String> {
                    $(if $json.is_null() {
                        return Ok($none);
                    })?
                    $read
                }
                fn words($new: &$value) -> String {
                    $words
                }
                $($put)*
            })+
        };
    }

    forms! {
        Text Text String => String {
            |key, json| text_of(key, json);
            |text| text.clone();
            fn line(text: &String) -> Option<&String> {
                Some(text)
            }
        }
        TresBind Text String => String {
            |key, json| {
                let text = text_of(key, json)?;
                match text.is_empty() {
                    true => Ok(text),
                    false => GpuBind::parse_tres(&text).map(|_| text).map_err(|why| format!("{key}: {why}")),
                }
            };
            |text| text.clone();
            fn line(text: &String) -> Option<&String> {
                Some(text)
            }
        }
        OptionalName OptionalText String => Option<String> {
            null String::new();
            |key, json| text_of(key, json);
            |name| if name.is_empty() { "none".to_owned() } else { name.clone() };
            fn put(field: &mut Option<String>, name: &String) {
                *field = Some(name.clone()).filter(|name| !name.is_empty());
            }
        }
        TimeLimit Limit Option<u32> => Option<u32> {
            null None;
            |key, json| count_of(key, json).map(Some);
            |secs| secs.map_or("UNLIMITED".to_owned(), |secs| squeue_time(secs.into()))
        }
        LeastTime OptionalSeconds Option<u32> => Option<u32> {
            null None;
            |key, json| count_of(key, json).map(Some);
            |secs| or_none(secs.map(|secs| squeue_time(secs.into())))
        }
        Nice Number i32 => i32 {
            |key, json| {
                let nice = json.as_i64().and_then(|nice| i32::try_from(nice).ok());
                nice.ok_or_else(|| wrong(key, json, "a whole number"))
            };
            |nice| nice.to_string()
        }
        RunningTasks Count u32 => u32 {
            |key, json| count_of(key, json);
            |most| if *most == 0 { "any number".to_owned() } else { most.to_string() }
        }
        Priority OptionalCount Option<u32> => Option<u32> {
            null None;
            |key, json| count_of(key, json).map(Some);
            |priority| priority.map_or("computed".to_owned(), |priority| priority.to_string())
        }
        Flag Flag bool => bool {
            |key, json| flag_of(key, json);
            |yes| yes_no(*yes)
        }
        FlagOrDefault Flag bool => Option<bool> {
            |key, json| flag_of(key, json);
            |yes| yes_no(*yes)
        }
        Begin Begin Timestamp => Timestamp {
            |key, json| time_of(key, json);
            |at| at.to_string()
        }
        Deadline OptionalEnd Option<Timestamp> => Option<Timestamp> {
            null None;
            |key, json| time_of(key, json).map(Some);
            |at| or_none(at.as_ref())
        }
        DependencyList OptionalText Option<Dependency> => Option<Dependency> {
            |key, json| parsed(key, json, Dependency::parse);
            |new| or_none(new.as_ref())
        }
        Checkpoint OptionalText Option<CheckpointSpec> => Option<CheckpointSpec> {
            |key, json| parsed(key, json, CheckpointSpec::parse);
            |new| or_none(new.as_ref())
        }
        LicenceList OptionalText BTreeMap<String, u32> => BTreeMap<String, u32> {
            |key, json| parsed(key, json, licence::parse).map(Option::unwrap_or_default);
            |all| or_none(Some(licence::text(all)).filter(|text| !text.is_empty()))
        }
    }
}

fn or_none(value: Option<impl Display>) -> String {
    value.map_or("none".to_owned(), |value| value.to_string())
}

fn yes_no(yes: bool) -> String {
    if yes { "yes" } else { "no" }.to_owned()
}

fn wrong(key: &str, value: &Value, wanted: &str) -> String {
    format!("{key} = {value} is not {wanted}")
}

fn text_of(key: &str, value: &Value) -> Result<String, String> {
    let text = value.as_str().map(str::to_owned);
    text.ok_or_else(|| wrong(key, value, "text"))
}

fn count_of(key: &str, value: &Value) -> Result<u32, String> {
    let count = value.as_u64().and_then(|count| u32::try_from(count).ok());
    count.ok_or_else(|| wrong(key, value, "a whole number, not negative"))
}

fn flag_of(key: &str, value: &Value) -> Result<bool, String> {
    let flag = value.as_bool();
    flag.ok_or_else(|| wrong(key, value, "true or false"))
}

fn time_of(key: &str, value: &Value) -> Result<Timestamp, String> {
    let at = value.as_str().and_then(parse_rfc3339);
    at.ok_or_else(|| wrong(key, value, "an RFC 3339 time in UTC"))
}

/// A text in a grammar of its own; null or an empty text is none.
fn parsed<T, E: Display>(
    key: &str,
    value: &Value,
    parse: impl Fn(&str) -> Result<T, E>,
) -> Result<Option<T>, String> {
    if value.is_null() {
        return Ok(None);
    }
    let text = text_of(key, value)?;
    let some = (!text.is_empty()).then(|| parse(&text).map_err(|error| error.to_string()));
    some.transpose()
}

/// JSON keeps `Some(None)` apart from `None`: absent, null, value.
mod present {
    use super::*;

    pub fn serialize<T: Serialize, S: Serializer>(
        value: &Option<T>,
        s: S,
    ) -> Result<S::Ok, S::Error> {
        value.as_ref().serialize(s)
    }

    pub fn deserialize<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
        d: D,
    ) -> Result<Option<T>, D::Error> {
        T::deserialize(d).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn words_and_keys_are_unique() {
        let words: Vec<String> = KEYS
            .iter()
            .flat_map(|key| key.words)
            .map(|word| word.to_ascii_lowercase())
            .collect();
        assert_eq!(words.iter().collect::<BTreeSet<_>>().len(), words.len());
        let keys: BTreeSet<&str> = KEYS.iter().map(|key| key.key).collect();
        assert_eq!(keys.len(), KEYS.len());
    }

    #[test]
    fn every_part_of_a_request_has_its_grammar() {
        for key in KEYS.iter().filter(|key| key.form == KeyForm::RequestPart) {
            let refusal = RequestChange::default().set(key.key, "a&").err();
            let refusal = refusal.unwrap_or_default();
            assert!(!refusal.contains("is no part"), "{}: {refusal}", key.key);
        }
    }

    #[test]
    fn a_stored_change_keeps_none_apart_from_no_change() {
        let text = r#"{"limit_secs":null,"comment":"x","deadline":null,"requeue":true,"request":{"ntasks":2}}"#;
        let change: JobChange = serde_json::from_str(text).unwrap();
        assert_eq!((change.limit_secs, change.priority), (Some(None), None));
        assert_eq!(change.deadline, Some(None));
        let again = serde_json::to_value(&change).unwrap();
        assert_eq!(again, serde_json::from_str::<Value>(text).unwrap());
    }

    #[test]
    fn a_text_is_written_where_listings_read_it() {
        for text in TEXTS {
            let (mut change, mut spec) = (JobChange::default(), JobSpec::default());
            let value = match text.key {
                "tres_bind" => "gres/gpu:closest",
                _ => "x",
            };
            change.set(text.key, &value.into()).unwrap();
            assert!(change.changes_request());
            change.apply(&mut spec);
            assert_eq!((text.of)(&spec), value);
            assert_eq!(change.words(), [(text.said, value.to_owned())]);
        }
        let refused = JobChange::default().set("tres_bind", &"gres/gpu:map:x".into());
        assert!(refused.unwrap_err().contains("Failed to validate number"));
    }
}
