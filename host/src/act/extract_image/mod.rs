//! Files out of a container image, without running it.
//!
//! The image is pulled as every other is, by digest and verified. Then a container is created of it,
//! never started, and files are copied out of that as a tar stream, which goes through the same hard
//! unpacker as every archive. The container is removed whatever happens; one that a killed host left is
//! removed by whoever looks next. So is the image by the next run that takes files out of it, where it was
//! pulled for this alone: one that the runtime had before, whoever brought it, stays.
//!
//! | ingredient of the key | why |
//! |---|---|
//! | `image` | repository and digest: name every byte |
//! | `platform` | the digest may be that of an index |
//! | `path` | each path that is taken out |
//!
//! | file | job |
//! |---|---|
//! | `container` | the container that files are copied out of |
//! | `left` | what is written down of it, so that it is removed whoever is killed |
//! | `library` | whether this machine's C library is new enough for a program and the libraries taken with it |

mod container;
mod left;
mod library;

use std::path::{Component, Path, PathBuf};

use engine_provider_api::{Artifact, ArtifactState, ExtractImage, Image, Step};
use serde::{Deserialize, Serialize};

pub(crate) use self::left::clear as clear_extractions;

use self::container::Created;
use super::{
    ACTOR, ActError, Context, Expected, ImageError, Outlook, WantedImage, begin, blocking, publish,
    pull_image,
};
use crate::{
    container::Images,
    store::{self, Begin, Entry, Ingredients, Kind, StoreError, Work},
    unpack,
};

/// With less space than this a disk counts as full.
const FULL_BELOW_BYTES: u64 = 1 << 20;

/// What is remembered of what was taken out.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Taken {
    image: Image,
}

/// A step, read.
struct Request<'a> {
    wanted: WantedImage<'a>,
    paths: Vec<PathBuf>,
    ingredients: Ingredients,
}

impl<'a> Request<'a> {
    fn new(context: &'a Context, step: &Step, act: &ExtractImage) -> Result<Self, ActError> {
        let failed = |error| ActError::image(step, error);
        let wanted = WantedImage::new(context, &act.image).map_err(failed)?;
        let Some(digest) = wanted.reference.digest() else {
            return Err(failed(ImageError::Unpinned {
                image: wanted.reference.to_string(),
            }));
        };
        let bad = |path: &str| ActError::Plan {
            reason: format!(
                "`{}` takes `{path}` out of an image, which is no absolute path",
                step.id
            ),
        };
        let mut paths = Vec::new();
        for path in &act.paths {
            paths.push(inside(path).ok_or_else(|| bad(path))?);
        }
        if paths.is_empty() {
            return Err(bad(""));
        }
        if let Some(program) = &act.program {
            inside(program).ok_or_else(|| bad(program))?;
        }
        let ingredients = Ingredients::new()
            .with("image", wanted.reference.with_digest(digest).to_string())
            .with("platform", wanted.platform.to_string())
            .with("path", &act.paths);
        Ok(Self {
            wanted,
            paths,
            ingredients,
        })
    }
}

/// An absolute path of an image as one below its root; `None` where it is none, or climbs.
fn inside(path: &str) -> Option<PathBuf> {
    let mut parts = Path::new(path).components();
    if parts.next() != Some(Component::RootDir) || path.chars().any(char::is_control) {
        return None;
    }
    let below: PathBuf = parts
        .map(|part| match part {
            Component::Normal(part) => Some(part),
            _ => None,
        })
        .collect::<Option<_>>()?;
    (below != Path::new("")).then_some(below)
}

pub(super) fn expected(
    context: &Context,
    step: &Step,
    act: &ExtractImage,
) -> Result<Expected, ActError> {
    let request = match Request::new(context, step, act) {
        Err(ActError::Image { source, .. }) if matches!(*source, ImageError::Unpinned { .. }) => {
            return Ok(Expected {
                artifact: Artifact::default(),
                outlook: Outlook::Unsupported {
                    why: source.to_string(),
                },
            });
        }
        other => other?,
    };
    let key = request.ingredients.key(Kind::Archive);
    let entry = context
        .store
        .find(&key)
        .map_err(|source| ActError::store(step, source))?;
    if let Some(entry) = entry {
        return Ok(Expected {
            artifact: artifact(&entry, &request),
            outlook: Outlook::Cached,
        });
    }
    let pull = pull_image::outlook(context, step, &request.wanted)?;
    let path = context.store.path_of(&key);
    Ok(Expected {
        artifact: Artifact {
            path: Some(path.to_string_lossy().into_owned()),
            digest: digest_of(&request),
            ..Artifact::default()
        },
        outlook: match pull {
            Outlook::Cached => Outlook::Copy,
            fetch => fetch,
        },
    })
}

fn digest_of(request: &Request<'_>) -> Option<String> {
    request.wanted.reference.digest().map(ToString::to_string)
}

fn artifact(entry: &Entry, request: &Request<'_>) -> Artifact {
    let taken: Option<Taken> = serde_json::from_value(entry.manifest.result.clone()).ok();
    Artifact {
        state: ArtifactState::Obtained,
        path: Some(entry.path.to_string_lossy().into_owned()),
        digest: digest_of(request),
        image: taken.map(|taken| Image {
            tag: request.wanted.reference.tag().map(str::to_owned),
            ..taken.image
        }),
        ..Artifact::default()
    }
}

pub(super) async fn run(
    context: &Context,
    step: &Step,
    act: &ExtractImage,
) -> Result<Artifact, ActError> {
    let request = Request::new(context, step, act)?;
    let doing = format!("taking files out of {}", request.wanted.reference);
    let ingredients = request.ingredients.clone();
    let work = match begin(context, Kind::Archive, step, ingredients, &doing).await? {
        Begin::Hit(entry) => {
            let human = format!("files of {} are here already", request.wanted.reference);
            context.narrator.say(ACTOR, "cached", &step.id, human);
            // Another program of the same files may be wanted, or the machine was upgraded.
            check_program(context, step, act, &entry.path).await?;
            return Ok(artifact(&entry, &request));
        }
        Begin::Work(work) => work,
    };
    context
        .policy
        .allow_binary_download(&request.wanted.reference.to_string())
        .map_err(|refusal| ActError::refused(step, refusal))?;
    let purpose = pull_image::Purpose::Extract;
    let record = pull_image::obtain(
        context,
        step,
        &request.wanted,
        purpose,
        &act.narration.start,
    )
    .await?;
    let human = format!(
        "taking {} out of {}",
        act.paths.join(", "),
        record.image.reference
    );
    context.narrator.say(ACTOR, "extract", &step.id, human);
    let image = record.image.reference.as_str();
    let copied = copy_out(context, step, &request, image, &work).await;
    let now = request.wanted.record(context, step)?;
    // Containers of it may be run by now.
    if now.is_some_and(|now| now.for_files) {
        // Before it is removed: nobody shall rely on it any more.
        Images::of(&context.store)
            .forget(image)
            .map_err(|source| ActError::store(step, source))?;
        container::remove_image(context, request.wanted.runtime, image).await;
    }
    copied?;
    check_program(context, step, act, &work.tree()).await?;
    let taken = Taken {
        image: record.image,
    };
    let entry = publish(step, work, taken).await?;
    Ok(artifact(&entry, &request))
}

/// Copies every path out of a container that is gone afterwards.
async fn copy_out(
    context: &Context,
    step: &Step,
    request: &Request<'_>,
    image: &str,
    work: &Work,
) -> Result<(), ActError> {
    let created = Created::new(context, step, request.wanted.runtime, image, work.key()).await?;
    let mut result = Ok(());
    for path in &request.paths {
        result = copy_one(context, step, &created, path, work).await;
        if result.is_err() {
            break;
        }
    }
    created.remove().await;
    result
}

async fn copy_one(
    context: &Context,
    step: &Step,
    created: &Created<'_>,
    path: &Path,
    work: &Work,
) -> Result<(), ActError> {
    let stream = work.beside("stream.tar");
    created.copy(step, path, &stream).await?;
    let part = work.beside("part");
    let target = work.tree().join(path);
    let shown = format!("/{} of the image", path.display());
    let free = store::free_bytes(&stream);
    let unpacked = blocking(move || {
        unpack_one(&stream, &part, &target).map_err(|refusal| match refusal {
            // The stream is cut where the disk was full.
            unpack::Refusal::Archive(_) if free.is_some_and(|free| free < FULL_BELOW_BYTES) => {
                unpack::Refusal::Store(StoreError::full(&stream, None))
            }
            other => other,
        })
    });
    unpacked.await.map_err(|refusal| match refusal {
        unpack::Refusal::Store(source) => ActError::store(step, source),
        unpack::Refusal::Archive(reason) => ActError::Archive {
            archive: shown,
            reason,
        },
    })?;
    if context.cancel.is_cancelled() {
        return Err(ActError::cancelled(step));
    }
    Ok(())
}

/// Unpacks one stream and puts the one thing in it where it lay in the image, whatever the stream
/// calls it: behind a link it has the name of what the link leads to.
fn unpack_one(stream: &Path, part: &Path, target: &Path) -> Result<(), unpack::Refusal> {
    let failed = |action, path: &Path, source| StoreError::io(action, path, source);
    store::make_directory(part)?;
    let file = std::fs::File::open(stream).map_err(|source| failed("open", stream, source))?;
    unpack::tar(std::io::BufReader::new(file), part)?;
    let entries = std::fs::read_dir(part).map_err(|source| failed("read", part, source))?;
    let mut names: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    let (Some(only), true) = (names.pop(), names.is_empty()) else {
        let reason = "the runtime gave more than was asked for".to_owned();
        return Err(unpack::Refusal::Archive(reason));
    };
    if let Some(parent) = target.parent() {
        store::make_directory(parent)?;
    }
    if target.exists() {
        let reason = "it lies in another path that is taken out as well".to_owned();
        return Err(unpack::Refusal::Archive(reason));
    }
    std::fs::rename(&only, target).map_err(|source| failed("move", &only, source))?;
    store::remove_tree(part)?;
    std::fs::remove_file(stream).map_err(|source| failed("remove", stream, source))?;
    Ok(())
}

async fn check_program(
    context: &Context,
    step: &Step,
    act: &ExtractImage,
    tree: &Path,
) -> Result<(), ActError> {
    let Some(program) = &act.program else {
        return Ok(());
    };
    let below = inside(program).expect("it was checked when the step was read");
    let (tree, path) = (tree.to_owned(), below.clone());
    let has = context.facts.os.glibc.clone();
    let checked = blocking(move || library::check(&tree, &path, &has)).await;
    checked.map_err(|problem| match problem {
        library::Problem::Missing => ActError::Output {
            step: step.id.clone(),
            path: below,
        },
        library::Problem::Store(source) => ActError::store(step, source),
        library::Problem::NoProgram(reason) => ActError::Archive {
            archive: program.clone(),
            reason,
        },
        library::Problem::TooNew { file, needs, has } => ActError::image(
            step,
            ImageError::Library {
                image: act.image.repository.clone(),
                file,
                needs,
                has,
            },
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_absolute_paths_that_climb_nowhere_are_taken() {
        assert_eq!(inside("/app/bin"), Some("app/bin".into()));
        assert_eq!(inside("/app/./bin/"), Some("app/bin".into()));
        for bad in ["", "/", "app", "/app/../etc", "../x", "/a\nb", "-"] {
            assert_eq!(inside(bad), None, "{bad}");
        }
    }
}
