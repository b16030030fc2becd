//! Writes GGUF files, in either byte order.

/// A file in the making: pairs and tensors in the order in which they are added.
#[derive(Clone)]
pub(in crate::model::facts) struct Writer {
    version: u32,
    big_endian: bool,
    pairs: (u64, Vec<u8>),
    tensors: (u64, Vec<u8>),
    offset: u64,
}

impl Writer {
    pub(in crate::model::facts) fn new(version: u32, big_endian: bool) -> Self {
        Self {
            version,
            big_endian,
            pairs: (0, Vec::new()),
            tensors: (0, Vec::new()),
            offset: 0,
        }
    }

    /// A plain model of architecture `llama`, with room for a tensor.
    pub(in crate::model::facts) fn llama() -> Self {
        Self::new(3, false)
            .text("general.architecture", "llama")
            .u32("llama.block_count", 80)
            .u32("llama.context_length", 131_072)
            .u32("llama.embedding_length", 8192)
            .u32("llama.feed_forward_length", 28_672)
            .u32("llama.attention.head_count", 64)
            .u32("llama.attention.head_count_kv", 8)
            .u32("general.file_type", 15)
    }

    fn bytes<const N: usize>(&self, mut bytes: [u8; N]) -> [u8; N] {
        if self.big_endian {
            bytes.reverse();
        }
        bytes
    }

    fn word(&self, text: &str) -> Vec<u8> {
        let mut bytes = self.bytes((text.len() as u64).to_le_bytes()).to_vec();
        bytes.extend(text.as_bytes());
        bytes
    }

    /// A pair whose value is given as it is written.
    pub(in crate::model::facts) fn raw(mut self, key: &str, kind: u32, value: &[u8]) -> Self {
        let mut bytes = self.word(key);
        bytes.extend(self.bytes(kind.to_le_bytes()));
        bytes.extend(value);
        self.pairs.0 += 1;
        self.pairs.1.extend(bytes);
        self
    }

    pub(in crate::model::facts) fn u32(self, key: &str, value: u32) -> Self {
        let bytes = self.bytes(value.to_le_bytes());
        self.raw(key, 4, &bytes)
    }

    pub(in crate::model::facts) fn u16(self, key: &str, value: u16) -> Self {
        let bytes = self.bytes(value.to_le_bytes());
        self.raw(key, 2, &bytes)
    }

    pub(in crate::model::facts) fn text(self, key: &str, value: &str) -> Self {
        let bytes = self.word(value);
        self.raw(key, 8, &bytes)
    }

    pub(in crate::model::facts) fn numbers(self, key: &str, values: &[u32]) -> Self {
        let mut bytes = self.bytes(4_u32.to_le_bytes()).to_vec();
        bytes.extend(self.bytes((values.len() as u64).to_le_bytes()));
        for value in values {
            bytes.extend(self.bytes(value.to_le_bytes()));
        }
        self.raw(key, 9, &bytes)
    }

    pub(in crate::model::facts) fn texts(self, key: &str, values: &[&str]) -> Self {
        let mut bytes = self.bytes(8_u32.to_le_bytes()).to_vec();
        bytes.extend(self.bytes((values.len() as u64).to_le_bytes()));
        for value in values {
            bytes.extend(self.word(value));
        }
        self.raw(key, 9, &bytes)
    }

    /// A tensor that takes `bytes`, which only its place shows.
    pub(in crate::model::facts) fn tensor(
        mut self,
        name: &str,
        sizes: &[u64],
        kind: u32,
        bytes: u64,
    ) -> Self {
        let mut info = self.word(name);
        let dimensions = u32::try_from(sizes.len()).unwrap();
        info.extend(self.bytes(dimensions.to_le_bytes()));
        for size in sizes {
            info.extend(self.bytes(size.to_le_bytes()));
        }
        info.extend(self.bytes(kind.to_le_bytes()));
        info.extend(self.bytes(self.offset.to_le_bytes()));
        self.offset += bytes.next_multiple_of(32);
        self.tensors.0 += 1;
        self.tensors.1.extend(info);
        self
    }

    /// The header, padded to where tensors begin.
    pub(in crate::model::facts) fn header(&self) -> Vec<u8> {
        let mut bytes = b"GGUF".to_vec();
        bytes.extend(self.bytes(self.version.to_le_bytes()));
        bytes.extend(self.bytes(self.tensors.0.to_le_bytes()));
        bytes.extend(self.bytes(self.pairs.0.to_le_bytes()));
        bytes.extend(&self.pairs.1);
        bytes.extend(&self.tensors.1);
        bytes.resize(bytes.len().next_multiple_of(32), 0);
        bytes
    }
}
