//! Tensor types of ggml, with their block sizes, and the names of whole files' types.
//!
//! Source: `GGML_QUANT_SIZES` and `LlamaFileType` in `gguf/constants.py` of the Python package `gguf`
//! 0.19, which equal `ggml_type` and `type_traits` in `ggml.c`, and `llama_ftype` in `llama.h`.

/// How numbers of a tensor are stored: in blocks that share a scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::model::facts) struct TensorType {
    number: u32,
    pub(in crate::model::facts) name: &'static str,
    /// Numbers in a block.
    pub(super) block: u64,
    /// Bytes of a block.
    pub(super) block_bytes: u64,
}

impl TensorType {
    pub(in crate::model::facts) fn find(number: u32) -> Option<Self> {
        TYPES.iter().copied().find(|kind| kind.number == number)
    }
}

const fn of(number: u32, name: &'static str, block: u64, block_bytes: u64) -> TensorType {
    TensorType {
        number,
        name,
        block,
        block_bytes,
    }
}

pub(super) const TYPES: &[TensorType] = &[
    of(0, "F32", 1, 4),
    of(1, "F16", 1, 2),
    of(2, "Q4_0", 32, 18),
    of(3, "Q4_1", 32, 20),
    of(6, "Q5_0", 32, 22),
    of(7, "Q5_1", 32, 24),
    of(8, "Q8_0", 32, 34),
    of(9, "Q8_1", 32, 40),
    of(10, "Q2_K", 256, 84),
    of(11, "Q3_K", 256, 110),
    of(12, "Q4_K", 256, 144),
    of(13, "Q5_K", 256, 176),
    of(14, "Q6_K", 256, 210),
    of(15, "Q8_K", 256, 292),
    of(16, "IQ2_XXS", 256, 66),
    of(17, "IQ2_XS", 256, 74),
    of(18, "IQ3_XXS", 256, 98),
    of(19, "IQ1_S", 256, 50),
    of(20, "IQ4_NL", 32, 18),
    of(21, "IQ3_S", 256, 110),
    of(22, "IQ2_S", 256, 82),
    of(23, "IQ4_XS", 256, 136),
    of(24, "I8", 1, 1),
    of(25, "I16", 1, 2),
    of(26, "I32", 1, 4),
    of(27, "I64", 1, 8),
    of(28, "F64", 1, 8),
    of(29, "IQ1_M", 256, 56),
    of(30, "BF16", 1, 2),
    of(34, "TQ1_0", 256, 54),
    of(35, "TQ2_0", 256, 66),
    of(39, "MXFP4", 32, 17),
    of(40, "NVFP4", 64, 36),
    of(41, "Q1_0", 128, 18),
];

/// Name of `general.file_type`: how most tensors of a file are stored.
pub(in crate::model::facts) fn file_type_name(number: u64) -> Option<&'static str> {
    FILE_TYPES
        .iter()
        .find(|(other, _)| *other == number)
        .map(|(_, name)| *name)
}

const FILE_TYPES: &[(u64, &str)] = &[
    (0, "F32"),
    (1, "F16"),
    (2, "Q4_0"),
    (3, "Q4_1"),
    (7, "Q8_0"),
    (8, "Q5_0"),
    (9, "Q5_1"),
    (10, "Q2_K"),
    (11, "Q3_K_S"),
    (12, "Q3_K_M"),
    (13, "Q3_K_L"),
    (14, "Q4_K_S"),
    (15, "Q4_K_M"),
    (16, "Q5_K_S"),
    (17, "Q5_K_M"),
    (18, "Q6_K"),
    (19, "IQ2_XXS"),
    (20, "IQ2_XS"),
    (21, "Q2_K_S"),
    (22, "IQ3_XS"),
    (23, "IQ3_XXS"),
    (24, "IQ1_S"),
    (25, "IQ4_NL"),
    (26, "IQ3_S"),
    (27, "IQ3_M"),
    (28, "IQ2_S"),
    (29, "IQ2_M"),
    (30, "IQ4_XS"),
    (31, "IQ1_M"),
    (32, "BF16"),
    (36, "TQ1_0"),
    (37, "TQ2_0"),
    (38, "MXFP4_MOE"),
    (39, "NVFP4"),
    (40, "Q1_0"),
];
