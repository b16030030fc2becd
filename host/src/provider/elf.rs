//! What an ELF file says about itself, read without opening it as a library.
//!
//! Opening alone can end or hang a process: a truncated file is a bus error on first touch, a
//! constructor runs before anybody could object, a library for another processor is reported as "No
//! such file". So everything that can be known from the headers is checked first, each with its own
//! one-line reason. Pure over bytes: [`examine`] takes anything that can be read at offsets and
//! reads only the tables it needs, so that a library of many megabytes costs a few small reads.

use std::fmt;

use engine_provider_api::{NOTE_NAME, NOTE_SECTION, NOTE_TYPE, abi::ENTRY_SYMBOL};
use object::{
    Endianness, ReadRef, SectionIndex,
    elf::{self, FileHeader64},
    read::elf::{FileHeader as _, ProgramHeader as _, SectionHeader as _, Sym as _},
};

/// Largest table (symbols, strings, notes, version needs) that is read. Real ones have kilobytes;
/// without a limit a forged header could ask for gigabytes.
const LARGEST_TABLE_BYTES: u64 = 16 * 1024 * 1024;

type Header = FileHeader64<Endianness>;
type Section = elf::SectionHeader64<Endianness>;

/// What a library must be made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Machine {
    /// `e_machine` of elf(5).
    pub number: u16,
    /// Version of the C library here; `None` where it is not glibc.
    pub glibc: Option<Glibc>,
}

impl Machine {
    /// This machine with this C library.
    #[must_use]
    pub fn this(glibc: Option<Glibc>) -> Self {
        let number = match std::env::consts::ARCH {
            "aarch64" => elf::EM_AARCH64,
            "riscv64" => elf::EM_RISCV,
            _ => elf::EM_X86_64,
        };
        Self {
            number: number.0,
            glibc,
        }
    }
}

/// A glibc version, major and minor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Glibc(pub u32, pub u32);

impl Glibc {
    /// Reads `2.36` or `2.36.1`; the third part says nothing about symbols.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('.');
        let major = parts.next()?.parse().ok()?;
        let minor = parts.next()?.parse().ok()?;
        Some(Self(major, minor))
    }
}

impl fmt::Display for Glibc {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}.{}", self.0, self.1)
    }
}

/// What was learned from a provider library.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Library {
    /// Text of the manifest note.
    pub manifest: String,
    /// Newest glibc version it takes symbols from.
    pub needs_glibc: Option<Glibc>,
}

/// Why a file is not a provider library for this machine, one line each.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ElfProblem {
    /// Something else than an ELF file.
    #[error("not an ELF file")]
    NotElf,
    /// Its headers contradict themselves.
    #[error("its ELF headers are malformed ({0})")]
    Malformed(String),
    /// Shorter than its own headers say.
    #[error("truncated: {part} ends at byte {end}, the file at {length}")]
    Truncated {
        /// What lies outside the file.
        part: String,
        /// Where it would end.
        end: u64,
        /// Length of the file.
        length: u64,
    },
    /// Not for 64-bit little-endian machines.
    #[error("made for {0} machines")]
    Class(&'static str),
    /// For another processor.
    #[error("made for {theirs}, this machine is {ours}")]
    Processor {
        /// Its processor.
        theirs: String,
        /// Ours.
        ours: String,
    },
    /// A program, an object file or a core dump.
    #[error("not a shared library but {0}")]
    NotShared(&'static str),
    /// No provider entry among its exported symbols.
    #[error("not an engine provider: it does not export the provider entry")]
    NoEntry,
    /// No manifest note.
    #[error("not an engine provider: it carries no `{NOTE_SECTION}` note")]
    NoManifest,
    /// Linked against a newer C library.
    #[error("needs glibc {needs}, this machine has {has}")]
    Glibc {
        /// Newest version it takes symbols from.
        needs: Glibc,
        /// Version here.
        has: Glibc,
    },
}

/// Checks a file's headers and takes its manifest out, reading no more than it must.
pub fn examine<'data>(data: impl ReadRef<'data>, machine: &Machine) -> Result<Library, ElfProblem> {
    let length = data.len().map_err(|()| ElfProblem::NotElf)?;
    check_identification(data)?;
    let file = File::parse(data, length)?;
    file.check_kind(machine)?;
    file.check_extent()?;
    if !file.exports_entry()? {
        return Err(ElfProblem::NoEntry);
    }
    let manifest = file.manifest()?.ok_or(ElfProblem::NoManifest)?;
    let needs_glibc = file.needed_glibc()?;
    if let (Some(needs), Some(has)) = (needs_glibc, machine.glibc)
        && needs > has
    {
        return Err(ElfProblem::Glibc { needs, has });
    }
    Ok(Library {
        manifest,
        needs_glibc,
    })
}

/// The newest glibc that a program or library takes symbols from; `None` where it takes none.
pub fn needed_glibc<'data>(data: impl ReadRef<'data>) -> Result<Option<Glibc>, ElfProblem> {
    let length = data.len().map_err(|()| ElfProblem::NotElf)?;
    check_identification(data)?;
    File::parse(data, length)?.needed_glibc()
}

/// The sixteen bytes that say how to read all others.
fn check_identification<'data>(data: impl ReadRef<'data>) -> Result<(), ElfProblem> {
    let ident = data.read_bytes_at(0, 16).map_err(|()| ElfProblem::NotElf)?;
    if ident[..4] != elf::ELFMAG {
        return Err(ElfProblem::NotElf);
    }
    if ident[4] != elf::ELFCLASS64.0 {
        return Err(ElfProblem::Class("32-bit"));
    }
    if ident[5] != elf::ELFDATA2LSB.0 {
        return Err(ElfProblem::Class("big-endian"));
    }
    Ok(())
}

struct File<'data, R: ReadRef<'data>> {
    data: R,
    length: u64,
    endian: Endianness,
    header: &'data Header,
    sections: object::read::elf::SectionTable<'data, Header, R>,
}

impl<'data, R: ReadRef<'data>> File<'data, R> {
    fn parse(data: R, length: u64) -> Result<Self, ElfProblem> {
        let header = Header::parse(data).map_err(|_| ElfProblem::Truncated {
            part: "the ELF header".to_owned(),
            end: size_of::<Header>() as u64,
            length,
        })?;
        let endian = header.endian().map_err(malformed)?;
        let table = u64::from(header.e_shentsize(endian)) * u64::from(header.e_shnum(endian));
        inside("the section table", header.e_shoff(endian), table, length)?;
        let sections = header.sections(endian, data).map_err(malformed)?;
        Ok(Self {
            data,
            length,
            endian,
            header,
            sections,
        })
    }

    fn check_kind(&self, machine: &Machine) -> Result<(), ElfProblem> {
        let theirs = self.header.e_machine(self.endian).0;
        if theirs != machine.number {
            return Err(ElfProblem::Processor {
                theirs: processor(theirs),
                ours: processor(machine.number),
            });
        }
        match self.header.e_type(self.endian) {
            elf::ET_DYN => Ok(()),
            elf::ET_EXEC => Err(ElfProblem::NotShared("a program")),
            elf::ET_REL => Err(ElfProblem::NotShared("an object file")),
            elf::ET_CORE => Err(ElfProblem::NotShared("a core dump")),
            _ => Err(ElfProblem::NotShared("something unknown")),
        }
    }

    /// Everything that would be mapped or read lies inside the file.
    fn check_extent(&self) -> Result<(), ElfProblem> {
        let (endian, length) = (self.endian, self.length);
        let segments = self
            .header
            .program_headers(endian, self.data)
            .map_err(malformed)?;
        for (number, segment) in segments.iter().enumerate() {
            let part = format!("segment {number}");
            inside(
                &part,
                segment.p_offset(endian),
                segment.p_filesz(endian),
                length,
            )?;
        }
        for (number, section) in self.sections.iter().enumerate() {
            if section.sh_type(endian) != elf::SHT_NOBITS {
                let part = format!("section {number}");
                inside(
                    &part,
                    section.sh_offset(endian),
                    section.sh_size(endian),
                    length,
                )?;
            }
        }
        Ok(())
    }

    fn exports_entry(&self) -> Result<bool, ElfProblem> {
        let Some(section) = self.section_of_type(elf::SHT_DYNSYM) else {
            return Ok(false);
        };
        let names = self.linked_strings(section)?;
        let symbols = section
            .data_as_array::<elf::Sym64<Endianness>, _>(self.endian, self.data)
            .map_err(malformed)?;
        // With the terminating zero, so that no longer name that begins alike passes.
        let entry = ENTRY_SYMBOL.as_bytes();
        Ok(symbols.iter().any(|symbol| {
            let at = symbol.st_name(self.endian) as usize;
            !symbol.is_undefined(self.endian)
                && symbol.st_bind() == elf::STB_GLOBAL
                && names.get(at..).is_some_and(|name| name.starts_with(entry))
        }))
    }

    /// The note's text: looked up by section name, then among the note segments.
    fn manifest(&self) -> Result<Option<String>, ElfProblem> {
        if let Some(section) = self.section_by_name(NOTE_SECTION)? {
            let bytes = self.bytes(section)?;
            if let Some(text) = note_text(self.endian, section.sh_addralign(self.endian), bytes)? {
                return Ok(Some(text));
            }
        }
        let segments = self
            .header
            .program_headers(self.endian, self.data)
            .map_err(malformed)?;
        for segment in segments {
            if segment.p_type(self.endian) == elf::PT_NOTE
                && segment.p_filesz(self.endian) <= LARGEST_TABLE_BYTES
            {
                let bytes = segment
                    .data(self.endian, self.data)
                    .map_err(|()| ElfProblem::Malformed("a note segment".to_owned()))?;
                if let Some(text) = note_text(self.endian, segment.p_align(self.endian), bytes)? {
                    return Ok(Some(text));
                }
            }
        }
        Ok(None)
    }

    /// The newest `GLIBC_x.y` among the versions it needs (`.gnu.version_r`).
    fn needed_glibc(&self) -> Result<Option<Glibc>, ElfProblem> {
        let Some(section) = self.section_of_type(elf::SHT_GNU_VERNEED) else {
            return Ok(None);
        };
        self.bytes(section)?;
        let names = self.linked_strings(section)?;
        let (mut needs, _) = section
            .gnu_verneed(self.endian, self.data)
            .map_err(malformed)?
            .expect("the section has this type");
        let mut newest = None;
        while let Some((_, mut versions)) = needs.next().map_err(malformed)? {
            while let Some(version) = versions.next().map_err(malformed)? {
                let at = version.vna_name.get(self.endian) as usize;
                newest = newest.max(glibc_at(names, at));
            }
        }
        Ok(newest)
    }

    fn section_of_type(&self, kind: elf::SectionType) -> Option<&'data Section> {
        self.sections
            .iter()
            .find(|section| section.sh_type(self.endian) == kind)
    }

    /// Like `SectionTable::section_by_name`, with one read for all names instead of one for each.
    fn section_by_name(&self, name: &str) -> Result<Option<&'data Section>, ElfProblem> {
        let index = self
            .header
            .shstrndx(self.endian, self.data)
            .map_err(malformed)?;
        let names = self.bytes(
            self.sections
                .section(SectionIndex(index as usize))
                .map_err(malformed)?,
        )?;
        Ok(self.sections.iter().find(|section| {
            let at = section.sh_name(self.endian) as usize;
            text_at(names, at) == Some(name.as_bytes())
        }))
    }

    fn linked_strings(&self, section: &Section) -> Result<&'data [u8], ElfProblem> {
        self.bytes(section)?;
        let link = SectionIndex(section.sh_link(self.endian) as usize);
        self.bytes(self.sections.section(link).map_err(malformed)?)
    }

    fn bytes(&self, section: &Section) -> Result<&'data [u8], ElfProblem> {
        if section.sh_size(self.endian) > LARGEST_TABLE_BYTES {
            return Err(ElfProblem::Malformed("a table of unlikely size".to_owned()));
        }
        section.data(self.endian, self.data).map_err(malformed)
    }
}

fn inside(part: &str, offset: u64, size: u64, length: u64) -> Result<(), ElfProblem> {
    match offset.checked_add(size) {
        Some(end) if end <= length => Ok(()),
        end => Err(ElfProblem::Truncated {
            part: part.to_owned(),
            end: end.unwrap_or(u64::MAX),
            length,
        }),
    }
}

fn note_text(endian: Endianness, align: u64, bytes: &[u8]) -> Result<Option<String>, ElfProblem> {
    let mut notes =
        object::read::elf::NoteIterator::<Header>::new(endian, align, bytes).map_err(malformed)?;
    while let Some(note) = notes.next().map_err(malformed)? {
        if note.name() == NOTE_NAME.as_bytes() && note.n_type(endian).0 == NOTE_TYPE {
            let text = std::str::from_utf8(note.desc());
            return text
                .map(|text| Some(text.to_owned()))
                .map_err(|_| ElfProblem::Malformed("its manifest is no text".to_owned()));
        }
    }
    Ok(None)
}

fn text_at(names: &[u8], at: usize) -> Option<&[u8]> {
    names.get(at..)?.split(|byte| *byte == 0).next()
}

fn glibc_at(names: &[u8], at: usize) -> Option<Glibc> {
    let name = std::str::from_utf8(text_at(names, at)?).ok()?;
    Glibc::parse(name.strip_prefix("GLIBC_")?)
}

fn malformed(error: object::Error) -> ElfProblem {
    ElfProblem::Malformed(error.to_string())
}

/// Name of a processor as uname(1) would say it.
fn processor(number: u16) -> String {
    match elf::Machine(number) {
        elf::EM_X86_64 => "x86_64".to_owned(),
        elf::EM_386 => "x86".to_owned(),
        elf::EM_AARCH64 => "aarch64".to_owned(),
        elf::EM_ARM => "arm".to_owned(),
        elf::EM_RISCV => "riscv".to_owned(),
        elf::EM_PPC64 => "powerpc64".to_owned(),
        elf::EM_S390 => "s390x".to_owned(),
        _ => format!("processor {number} of elf(5)"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn glibc_versions_are_compared_by_numbers() {
        let version = |text| Glibc::parse(text).unwrap();
        assert!(version("2.9") < version("2.36"));
        assert!(version("2.2.5") < version("2.3"));
        assert_eq!(Glibc::parse("PRIVATE"), None);
    }

    #[test]
    fn names_are_read_up_to_their_end_and_never_beyond_the_table() {
        assert_eq!(text_at(b"\0one\0two", 1), Some(&b"one"[..]));
        assert_eq!(text_at(b"\0one\0two", 5), Some(&b"two"[..]));
        assert_eq!(text_at(b"\0one", 9), None);
        assert_eq!(glibc_at(b"\0GLIBC_2.34\0", 1), Some(Glibc(2, 34)));
    }
}
