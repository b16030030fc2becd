//! Pure helpers that every engine provider would otherwise rewrite.
//!
//! Each module answers one question from documents alone: which GPUs ([`gpu`]), which CUDA toolkit
//! and host compiler ([`cuda`]), how a cmake project is built ([`cmake`]), which tools and packages ([`tools`]), what a list of flags means
//! ([`flags`]) and whether a program knows them ([`help`]), which environment ([`environment`]),
//! what a model is called ([`model`]), whether a program that was asked started at all ([`observed`]), which image and what is mounted ([`container`]), how an engine
//! that runs already is attached to ([`external`]), how Python packages are installed ([`python`]). What is particular to one engine stays in its
//! provider.

pub mod cmake;
pub mod container;
pub mod cuda;
pub mod environment;
pub mod external;
pub mod flags;
pub mod gpu;
pub mod help;
pub mod model;
pub mod observed;
pub mod python;
pub mod tools;
