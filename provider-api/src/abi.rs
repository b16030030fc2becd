//! The one file that names abi_stable: how a provider library is entered.
//!
//! A library exports one root module with one function, which makes a provider object. The object's
//! vtable is frozen: `info`, `plan`, `prepare`, and `extension` as the only growth point. JSON
//! documents cross, never growing structs, because abi_stable accepts an older host with a newer
//! plugin but refuses a newer host with an older plugin for every additive change of a shared type.
//!
//! Panics never cross: every entry (construction and drop included) catches them inside the library
//! and answers with a [`ProviderError`] that has message and location. A library built with
//! `panic = "abort"` could not do that and does not compile.
#![allow(
    non_local_definitions,
    non_camel_case_types,
    missing_docs,
    unreachable_pub,
    clippy::allow_attributes_without_reason,
    reason = "what the derive macros of abi_stable 0.11 expand to"
)]
#![expect(
    unsafe_code,
    reason = "the entry of a shared library cannot be written without"
)]

use std::{
    cell::{Cell, RefCell},
    mem::ManuallyDrop,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Once,
};

use abi_stable::{
    StableAbi,
    library::{AbiHeaderRef, CheckTypeLayout, LibHeader, RootModule, RootModuleResult},
    package_version_strings,
    prefix_type::PrefixTypeTrait,
    sabi_trait,
    sabi_trait::prelude::TD_Opaque,
    sabi_types::VersionStrings,
    std_types::{RBox, RErr, ROk, RResult, RStr, RString},
};

use crate::{
    Document, DocumentError, EngineProvisioner, ErrorCode, Plan, PlanRequest, PrepareRequest,
    PreparedEngine, ProviderError, ProviderInfo,
};

/// Symbol that every provider library exports, with its terminating zero, for `dlsym`.
pub const ENTRY_SYMBOL: &str = abi_stable::library::ROOT_MODULE_LOADER_NAME_WITH_NUL;

/// What [`ENTRY_SYMBOL`] points at.
pub type Header = AbiHeaderRef;

/// Answer of every entry: a document, or a [`ProviderError`] document.
pub type Answer = RResult<RString, RString>;

/// The frozen vtable.
#[sabi_trait]
pub trait RawProvider: Send + Sync {
    fn info(&self) -> Answer;
    fn plan(&self, request: RStr<'_>) -> Answer;
    fn prepare(&self, request: RStr<'_>) -> Answer;
    #[sabi(last_prefix_field)]
    fn extension(&self, op: RStr<'_>, document: RStr<'_>) -> Answer;
}

/// A provider as it crosses the boundary.
pub type RawProviderObject = RawProvider_TO<'static, RBox<()>>;

/// The root module: frozen, like the vtable.
#[repr(C)]
#[derive(StableAbi)]
#[sabi(kind(Prefix(prefix_ref = ProviderModuleRef)))]
#[sabi(missing_field(panic))]
pub struct ProviderModule {
    #[sabi(last_prefix_field)]
    pub create: extern "C" fn() -> RResult<RawProviderObject, RString>,
}

impl RootModule for ProviderModuleRef {
    abi_stable::declare_root_module_statics! {ProviderModuleRef}
    const BASE_NAME: &'static str = "engine_provider";
    const NAME: &'static str = "engine_provider";
    const VERSION_STRINGS: VersionStrings = package_version_strings!();
}

/// Why an open library is not a provider that can be driven.
#[derive(Debug, thiserror::Error)]
pub enum AbiError {
    /// Its entry does not have the layout of this contract.
    #[error(
        "the library's entry does not match contract {}: {reason}",
        crate::CONTRACT_VERSION
    )]
    Layout {
        /// First difference that was found.
        reason: String,
    },
    /// It was exported without its layout, so that nothing can be checked.
    #[error("the library was exported without a layout to check")]
    Unchecked,
    /// It could not make its provider object.
    #[error("the provider could not be created")]
    Create(#[source] ProviderError),
}

/// Why a call did not give a document.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The provider refused.
    #[error(transparent)]
    Provider(#[from] ProviderError),
    /// It answered with something that is not the document.
    #[error("the provider answered `{op}` with something unreadable")]
    Answer {
        /// Entry that was called.
        op: &'static str,
        /// Why it is unreadable.
        #[source]
        source: DocumentError,
    },
}

/// A provider in this process.
pub struct Provider(RawProviderObject);

impl Provider {
    /// Checks the header of an opened library and makes its provider object.
    ///
    /// Works on the header itself and not through abi_stable's loader, which is a singleton per
    /// type: a second library would silently be the first.
    pub fn connect(header: Header) -> Result<Self, AbiError> {
        let layout = |error: abi_stable::library::LibraryError| AbiError::Layout {
            reason: first_line(&error.to_string()),
        };
        let header = header.upgrade().map_err(layout)?;
        if header.layout().is_none() {
            return Err(AbiError::Unchecked);
        }
        let module = header
            .init_root_module::<ProviderModuleRef>()
            .map_err(layout)?;
        match module.create()() {
            ROk(object) => Ok(Self(object)),
            RErr(error) => Err(AbiError::Create(read_error(&error))),
        }
    }

    /// Calls an entry with JSON and gives JSON back, either side unread: what a worker forwards.
    /// The error is a [`ProviderError`] document.
    pub fn call(&self, op: &str, document: &str) -> Result<String, String> {
        let document = RStr::from_str(document);
        let answer = match op {
            "info" => self.0.info(),
            "plan" => self.0.plan(document),
            "prepare" => self.0.prepare(document),
            other => self.0.extension(RStr::from_str(other), document),
        };
        match answer {
            ROk(text) => Ok(text.into_string()),
            RErr(text) => Err(text.into_string()),
        }
    }

    /// [`EngineProvisioner::info`] across the boundary.
    pub fn info(&self) -> Result<ProviderInfo, CallError> {
        self.typed("info", "")
    }

    /// [`EngineProvisioner::plan`] across the boundary.
    pub fn plan(&self, request: &PlanRequest) -> Result<Plan, CallError> {
        self.typed("plan", &request.write())
    }

    /// [`EngineProvisioner::prepare`] across the boundary.
    pub fn prepare(&self, request: &PrepareRequest) -> Result<PreparedEngine, CallError> {
        self.typed("prepare", &request.write())
    }

    fn typed<T: Document>(&self, op: &'static str, document: &str) -> Result<T, CallError> {
        read_answer(op, self.call(op, document))
    }
}

/// Reads what an entry answered, on whichever side of a pipe it was called.
pub fn read_answer<T: Document>(
    op: &'static str,
    answer: Result<String, String>,
) -> Result<T, CallError> {
    let text = answer.map_err(|error| read_error(&error))?;
    T::read(&text).map_err(|source| CallError::Answer { op, source })
}

fn read_error(json: &str) -> ProviderError {
    ProviderError::read(json).unwrap_or_else(|error| {
        ProviderError::new(
            ErrorCode::Internal,
            "the provider failed without saying why",
        )
        .because(error.to_string())
    })
}

fn first_line(text: &str) -> String {
    text.lines()
        .map(str::trim)
        .find(|line| !line.is_empty())
        .unwrap_or_default()
        .to_owned()
}

// ---- the library's side ---------------------------------------------------------------------

/// Wraps a provider so that no panic leaves the library, its drop included.
struct Guarded<P>(ManuallyDrop<P>);

impl<P> Drop for Guarded<P> {
    fn drop(&mut self) {
        // SAFETY: dropped exactly once, here, and never touched afterwards.
        let drop_it = || unsafe { ManuallyDrop::drop(&mut self.0) };
        let _ = guard(AssertUnwindSafe(drop_it));
    }
}

impl<P: EngineProvisioner> RawProvider for Guarded<P> {
    fn info(&self) -> Answer {
        answer(|| Ok(self.0.info().write()))
    }

    fn plan(&self, request: RStr<'_>) -> Answer {
        answer(|| {
            let mut plan = self.0.plan(&read_request(request)?)?;
            plan.announce();
            Ok(plan.write())
        })
    }

    fn prepare(&self, request: RStr<'_>) -> Answer {
        answer(|| {
            let mut engine = self.0.prepare(&read_request(request)?)?;
            engine.announce();
            Ok(engine.write())
        })
    }

    fn extension(&self, op: RStr<'_>, document: RStr<'_>) -> Answer {
        answer(|| self.0.extension(op.as_str(), document.as_str()))
    }
}

fn read_request<T: Document>(json: RStr<'_>) -> Result<T, ProviderError> {
    T::read(json.as_str()).map_err(|error| {
        let mut refusal = ProviderError::new(
            ErrorCode::Internal,
            "the provider cannot read the host's request",
        );
        let mut cause: Option<&dyn std::error::Error> = Some(&error);
        while let Some(layer) = cause {
            refusal = refusal.because(layer.to_string());
            cause = layer.source();
        }
        refusal
    })
}

fn answer(call: impl FnOnce() -> Result<String, ProviderError>) -> Answer {
    match guard(AssertUnwindSafe(call)) {
        Ok(Ok(text)) => ROk(text.into()),
        Ok(Err(error)) | Err(error) => RErr(error.write().into()),
    }
}

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Runs a call and turns a panic into an error with its message and location.
///
/// Each library has a standard library of its own, hence a panic hook of its own: setting it
/// disturbs nobody else.
fn guard<T>(call: AssertUnwindSafe<impl FnOnce() -> T>) -> Result<T, ProviderError> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let previous = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if INSIDE.get() {
                let place = info.location().map(ToString::to_string);
                let text = format!(
                    "{} at {}",
                    info.payload_as_str().unwrap_or("a value that is no text"),
                    place.as_deref().unwrap_or("an unknown place")
                );
                PANIC.with(|slot| *slot.borrow_mut() = Some(text));
            } else {
                previous(info);
            }
        }));
    });
    let outer = INSIDE.replace(true);
    let outcome = catch_unwind(call);
    INSIDE.set(outer);
    outcome.map_err(|payload| {
        // A payload whose own drop panics must not get a second chance.
        std::mem::forget(payload);
        let text = PANIC.with(|slot| slot.borrow_mut().take());
        ProviderError::new(ErrorCode::Internal, "the provider panicked")
            .because(text.unwrap_or_else(|| "no message was recorded".to_owned()))
    })
}

extern "C" fn create<P: EngineProvisioner + Default + 'static>()
-> RResult<RawProviderObject, RString> {
    match guard(AssertUnwindSafe(P::default)) {
        Ok(provider) => ROk(RawProvider_TO::from_value(
            Guarded(ManuallyDrop::new(provider)),
            TD_Opaque,
        )),
        Err(error) => RErr(error.write().into()),
    }
}

extern "C" fn root_module<P: EngineProvisioner + Default + 'static>() -> RootModuleResult {
    abi_stable::library::__call_root_module_loader(|| {
        ProviderModule {
            create: create::<P>,
        }
        .leak_into_prefix()
    })
}

/// What [`ENTRY_SYMBOL`] names in a library; for [`export_provider!`](crate::export_provider) only.
#[doc(hidden)]
pub type Entry = LibHeader;

/// Makes the library's entry; for [`export_provider!`](crate::export_provider) only.
#[doc(hidden)]
#[must_use]
pub const fn entry<P: EngineProvisioner + Default + 'static>() -> Entry {
    // SAFETY: `root_module` erases a `ProviderModuleRef`, which is the type named here.
    unsafe {
        LibHeader::from_constructor::<ProviderModuleRef>(root_module::<P>, CheckTypeLayout::Yes)
    }
}

/// An ELF note as it lies in the file: sizes, type, padded name, descriptor.
#[doc(hidden)]
#[repr(C, align(4))]
pub struct Note<const LENGTH: usize> {
    name_size: u32,
    descriptor_size: u32,
    kind: u32,
    name: [u8; 16],
    descriptor: [u8; LENGTH],
}

impl<const LENGTH: usize> Note<LENGTH> {
    /// A note with `text` as its descriptor.
    #[doc(hidden)]
    #[must_use]
    pub const fn new(text: &str) -> Self {
        let mut name = [0; 16];
        let owner = crate::NOTE_NAME.as_bytes();
        let mut at = 0;
        while at < owner.len() {
            name[at] = owner[at];
            at += 1;
        }
        let mut descriptor = [0; LENGTH];
        let bytes = text.as_bytes();
        at = 0;
        while at < LENGTH {
            descriptor[at] = bytes[at];
            at += 1;
        }
        Self {
            name_size: owner.len() as u32 + 1,
            descriptor_size: LENGTH as u32,
            kind: crate::NOTE_TYPE,
            name,
            descriptor,
        }
    }
}

/// Exports a provider from a `cdylib` crate: its entry and its manifest note.
///
/// `$provider` implements [`EngineProvisioner`] and `Default`. The manifest's version is the
/// crate's own; its contract version is this crate's. All values must be literals without quotes or
/// backslashes.
#[macro_export]
macro_rules! export_provider {
    ($provider:ty, manifest = {
        name: $name:literal,
        description: $description:literal,
        modes: [$first_mode:literal $(, $mode:literal)* $(,)?]
        $(, ops: [$first_op:literal $(, $op:literal)* $(,)?])?
        $(,)?
    }) => {
        const _: () = {
            assert!(
                !cfg!(panic = "abort"),
                "a provider built with panic = \"abort\" would take the host down: use panic = \"unwind\""
            );

            const MANIFEST: &str = concat!(
                "{\"name\":\"", $name,
                "\",\"version\":\"", env!("CARGO_PKG_VERSION"),
                "\",\"contract\":\"", $crate::contract_version!(),
                "\",\"description\":\"", $description,
                "\",\"modes\":[\"", $first_mode, "\"" $(, ",\"", $mode, "\"")*, "]",
                $(",\"ops\":[\"", $first_op, "\"" $(, ",\"", $op, "\"")*, "]",)?
                "}"
            );

            #[used]
            #[unsafe(link_section = ".note.engine-provider")]
            static NOTE: $crate::abi::Note<{ MANIFEST.len() }> = $crate::abi::Note::new(MANIFEST);

            // The name is abi_stable's `ROOT_MODULE_LOADER_NAME`; a test holds the two together.
            #[unsafe(export_name = "_1as_0lib_1header_0root_bmodule_bloader")]
            pub static ENTRY: $crate::abi::Entry = $crate::abi::entry::<$provider>();
        };
    };
}

/// The contract version as a literal, for `concat!`; equal to [`CONTRACT_VERSION`](crate::CONTRACT_VERSION).
#[doc(hidden)]
#[macro_export]
macro_rules! contract_version {
    () => {
        "1.2.0"
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_of_the_macro_equal_their_constants() {
        assert_eq!(
            abi_stable::library::ROOT_MODULE_LOADER_NAME,
            "_1as_0lib_1header_0root_bmodule_bloader"
        );
        assert_eq!(contract_version!(), crate::CONTRACT_VERSION);
        assert_eq!(crate::NOTE_SECTION, ".note.engine-provider");
        assert!(crate::NOTE_NAME.len() < 16);
    }

    #[test]
    fn a_panic_becomes_an_error_with_message_and_location() {
        let error = guard(AssertUnwindSafe(|| panic!("boom {}", 7))).unwrap_err();
        assert_eq!(error.code, ErrorCode::Internal);
        assert!(error.causes[0].starts_with("boom 7 at "), "{error:?}");
        assert!(error.causes[0].contains("abi.rs:"), "{error:?}");
    }

    #[test]
    fn a_panic_while_dropping_stays_inside() {
        struct Bomb;
        impl Drop for Bomb {
            fn drop(&mut self) {
                panic!("dropped");
            }
        }
        drop(Guarded(ManuallyDrop::new(Bomb)));
    }
}
