//! Requests and answers of PMI as they stand on a rank's socket: PMI-1 in lines, PMI-2 in messages with their length before them.
//! Everything that comes is a program's of the user. Pure.
//! Source: src/pmi/maint/pmi-1.1.txt and pmi-2.0.txt of MPICH, and the wire protocol of PMI 2 in its wiki.

/// The most that a request may have: a program with all its arguments, for a spawn that is then refused.
pub const MAX_REQUEST_BYTES: usize = 128 << 10;
/// Digits of the length before a message of PMI-2.
const LENGTH_DIGITS: usize = 6;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PmiVersion {
    /// Also of the first request, whichever version follows.
    #[default]
    One,
    Two,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PmiRequest {
    pub name: String,
    fields: Vec<(String, String)>,
}

/// Bytes that are no request: the connection cannot be read on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadRequest(pub &'static str);

impl PmiRequest {
    pub fn field(&self, name: &str) -> Option<&str> {
        let mut found = self.fields.iter().filter(|(known, _)| known == name);
        found.next().map(|(_, value)| value.as_str())
    }

    /// The first request of `buffer` and its length; `None` while it is not whole.
    ///
    /// # Errors
    /// No request stands there, or one that is too long.
    pub fn read(version: PmiVersion, buffer: &[u8]) -> Result<Option<(Self, usize)>, BadRequest> {
        let read = match version {
            PmiVersion::One => Self::read_lines(buffer),
            PmiVersion::Two => Self::read_message(buffer),
        };
        match read {
            Ok(None) if buffer.len() > MAX_REQUEST_BYTES => Err(BadRequest("it has no end")),
            read => read,
        }
    }

    /// `cmd=put key=a value=b`, or the lines from `mcmd=spawn` to `endcmd`.
    fn read_lines(buffer: &[u8]) -> Result<Option<(Self, usize)>, BadRequest> {
        let mut fields = Vec::new();
        let mut used = 0;
        for line in buffer.split_inclusive(|byte| *byte == b'\n') {
            let Some(text) = line.strip_suffix(b"\n") else {
                return Ok(None);
            };
            used += line.len();
            let text = std::str::from_utf8(text).map_err(|_| BadRequest("it is no text"))?;
            let is_first = fields.is_empty();
            match text {
                "endcmd" if !is_first => return Self::of(fields, used).map(Some),
                _ if is_first && !text.starts_with("mcmd=") => {
                    split_line(text, &mut fields);
                    return Self::of(fields, used).map(Some);
                }
                _ => fields.extend(field(text)),
            }
            if used > MAX_REQUEST_BYTES {
                return Err(BadRequest("it has too many lines"));
            }
        }
        Ok(None)
    }

    /// `    25cmd=kvs-put;key=a;value=b;`, where `;;` is one of a value.
    fn read_message(buffer: &[u8]) -> Result<Option<(Self, usize)>, BadRequest> {
        let Some(digits) = buffer.get(..LENGTH_DIGITS) else {
            return Ok(None);
        };
        let length = std::str::from_utf8(digits)
            .ok()
            .and_then(|text| text.trim().parse::<usize>().ok())
            .filter(|length| *length <= MAX_REQUEST_BYTES)
            .ok_or(BadRequest("its length is no number, or too large"))?;
        let end = LENGTH_DIGITS + length;
        let Some(body) = buffer.get(LENGTH_DIGITS..end) else {
            return Ok(None);
        };
        let body = std::str::from_utf8(body).map_err(|_| BadRequest("it is no text"))?;
        let mut fields = Vec::new();
        let mut text = String::new();
        let mut letters = body.chars().peekable();
        while let Some(letter) = letters.next() {
            match letter {
                ';' if letters.next_if_eq(&';').is_some() => text.push(';'),
                ';' => fields.extend(field(&std::mem::take(&mut text))),
                letter => text.push(letter),
            }
        }
        fields.extend(field(&text));
        Self::of(fields, end).map(Some)
    }

    fn of(mut fields: Vec<(String, String)>, used: usize) -> Result<(Self, usize), BadRequest> {
        if fields.is_empty() {
            return Err(BadRequest("it is empty"));
        }
        let (key, name) = fields.remove(0);
        match key.as_str() {
            "cmd" | "mcmd" => Ok((Self { name, fields }, used)),
            _ => Err(BadRequest("it does not begin with cmd=")),
        }
    }
}

fn field(text: &str) -> Option<(String, String)> {
    let (name, value) = text.split_once('=')?;
    Some((name.to_owned(), value.to_owned()))
}

/// Words apart by blanks. A value may have blanks itself, and is the last of its line.
fn split_line(text: &str, fields: &mut Vec<(String, String)>) {
    let mut rest = text.trim_start_matches(' ');
    while let Some((name, behind)) = rest.split_once('=') {
        let is_last = matches!(name, "value" | "port" | "message" | "msg");
        let (value, next) = match behind.split_once(' ') {
            Some((value, next)) if !is_last => (value, next.trim_start_matches(' ')),
            _ => (behind, ""),
        };
        fields.push((name.to_owned(), value.to_owned()));
        rest = next;
    }
}

/// An answer being written.
pub struct PmiAnswer {
    version: PmiVersion,
    text: String,
}

impl PmiAnswer {
    /// PMI-2 has the asking thread's name in the answer.
    pub fn new(version: PmiVersion, name: &str, request: &PmiRequest) -> Self {
        let answer = Self {
            version,
            text: format!("cmd={name}"),
        };
        match request.field("thrid") {
            Some(thread) if version == PmiVersion::Two => answer.with("thrid", thread),
            _ => answer,
        }
    }

    pub fn with(mut self, name: &str, value: impl ToString) -> Self {
        let value = value.to_string();
        let (separator, value) = match self.version {
            PmiVersion::One => (' ', value),
            PmiVersion::Two => (';', value.replace(';', ";;")),
        };
        self.text.push(separator);
        self.text.push_str(name);
        self.text.push('=');
        self.text.push_str(&value);
        self
    }

    pub fn bytes(self) -> Vec<u8> {
        match self.version {
            PmiVersion::One => format!("{}\n", self.text),
            PmiVersion::Two => format!("{:>6}{};", self.text.len() + 1, self.text),
        }
        .into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(version: PmiVersion, text: &str) -> PmiRequest {
        let (request, used) = PmiRequest::read(version, text.as_bytes()).unwrap().unwrap();
        assert_eq!(used, text.len());
        for cut in 0..text.len() {
            let part = PmiRequest::read(version, &text.as_bytes()[..cut]);
            assert_eq!(part, Ok(None), "{cut} bytes of {text:?}");
        }
        request
    }

    #[test]
    fn requests_of_both_versions_are_read_whole() {
        let put = read(
            PmiVersion::One,
            "cmd=put kvsname=k_0 key=P0 value=host#n1 port$7\n",
        );
        assert_eq!(put.name, "put");
        assert_eq!(put.field("key"), Some("P0"));
        assert_eq!(put.field("value"), Some("host#n1 port$7"));
        let spawn = read(
            PmiVersion::One,
            "mcmd=spawn\nnprocs=2\nexecname=./a\nendcmd\n",
        );
        assert_eq!(
            (spawn.name.as_str(), spawn.field("execname")),
            ("spawn", Some("./a"))
        );
        let put = read(PmiVersion::Two, "    31cmd=kvs-put;key=a;value=b;;c=d;");
        assert_eq!(put.field("value"), Some("b;c=d"));
        assert_eq!(put.field("thrid"), None);
    }

    #[test]
    fn answers_have_the_form_of_the_request() {
        let ask = read(PmiVersion::Two, "    30cmd=kvs-get;thrid=0x1;key=a;b;");
        let answer = PmiAnswer::new(PmiVersion::Two, "kvs-get-response", &ask).with("value", "b;c");
        assert_eq!(
            answer.bytes(),
            b"    42cmd=kvs-get-response;thrid=0x1;value=b;;c;"
        );
        let ask = read(PmiVersion::One, "cmd=get_maxes\n");
        let answer = PmiAnswer::new(PmiVersion::One, "maxes", &ask).with("keylen_max", 64);
        assert_eq!(answer.bytes(), b"cmd=maxes keylen_max=64\n");
    }

    #[test]
    fn what_is_no_request_is_refused_before_it_fills_memory() {
        let bad = |version, bytes: &[u8]| PmiRequest::read(version, bytes).is_err();
        assert!(bad(PmiVersion::One, b"\n") && bad(PmiVersion::One, b"hello\n"));
        assert!(bad(PmiVersion::One, b"cmd=\xff\n"));
        assert!(bad(PmiVersion::Two, b"999999cmd=x;") && bad(PmiVersion::Two, b"  -1  "));
        assert!(bad(PmiVersion::One, &vec![b'x'; MAX_REQUEST_BYTES + 1]));
        let lines = [
            b"mcmd=spawn\n".to_vec(),
            b"a=b\n".repeat(MAX_REQUEST_BYTES / 4),
        ]
        .concat();
        assert!(bad(PmiVersion::One, &lines));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_refused_or_waited_for(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            for version in [PmiVersion::One, PmiVersion::Two] {
                if let Ok(Some((_, used))) = PmiRequest::read(version, &bytes) {
                    prop_assert!(used > 0 && used <= bytes.len());
                }
            }
        }
    }
}
