//! Reads as much of a model's files as is needed to say what it is.

use engine_provider_api::ModelFacts;

use super::{
    FactsError, HeaderError, describe, gguf,
    pick::{Part, Pick, pick},
    repository, safetensors,
};

/// Bytes asked for first; a header without vocabulary is shorter.
const FIRST_BYTES: u64 = 256 << 10;
/// By how much more is asked for each time.
const GROWTH: u64 = 4;
/// Most files whose headers are added up; of more, sizes do.
const LIMIT_HEADERS: usize = 16;

/// Files whose first bytes can be had.
pub(super) trait Place {
    /// Names of all files, as they lie in the model.
    fn names(&self) -> Vec<&str>;
    /// A file for people.
    fn shown(&self, file: usize) -> String;
    /// Size of a file, where it is known.
    fn size_bytes(&self, file: usize) -> Option<u64>;
    /// Adds what follows `bytes` in a file, until there are `to`, or fewer where it ends.
    async fn more(&self, file: usize, bytes: &mut Vec<u8>, to: u64) -> Result<(), FactsError>;
}

pub(super) async fn look(place: &impl Place) -> Result<Option<ModelFacts>, FactsError> {
    let picked = match pick(&place.names()) {
        Some(picked) => picked,
        // A blob is named by its digest alone.
        None if place.names().len() == 1 && is_gguf(place).await? => Pick::Gguf(vec![0]),
        None => return Ok(None),
    };
    match picked {
        Pick::Gguf(parts) => of_gguf(place, &parts).await,
        Pick::Repository {
            config,
            index,
            weights,
        } => {
            let mut facts = match config {
                Some(file) => described(place, file).await?,
                None => ModelFacts {
                    format: "safetensors".to_owned(),
                    ..ModelFacts::default()
                },
            };
            weigh(place, &mut facts, index, &weights).await?;
            Ok(Some(facts))
        }
    }
}

async fn is_gguf(place: &impl Place) -> Result<bool, FactsError> {
    let mut bytes = Vec::new();
    place.more(0, &mut bytes, 4).await?;
    Ok(bytes == b"GGUF")
}

async fn of_gguf(place: &impl Place, parts: &[usize]) -> Result<Option<ModelFacts>, FactsError> {
    let mut headers = Vec::new();
    for file in parts.iter().take(LIMIT_HEADERS) {
        let header = grow(place, *file, gguf::LIMIT_BYTES, |bytes| {
            gguf::Header::read(bytes)
        })
        .await?;
        if let (Some(needs), Some(has)) = (header.end, place.size_bytes(*file))
            && has < needs
        {
            return Err(FactsError::CutOff {
                file: place.shown(*file),
                needs,
                has,
            });
        }
        headers.push(header);
    }
    check_parts(place, parts, &headers)?;
    let mut facts = describe::describe(&headers);
    if let Some(facts) = &mut facts
        && parts.len() > headers.len()
    {
        facts.parameters = None;
        let sizes = parts.iter().map(|file| place.size_bytes(*file));
        facts.weight_bytes = describe::sum(sizes);
        facts.files = Some(parts.len() as u64);
    }
    Ok(facts)
}

/// Refuses parts that are not all, or not of one model. What they say themselves holds.
fn check_parts(
    place: &impl Place,
    parts: &[usize],
    headers: &[gguf::Header],
) -> Result<(), FactsError> {
    let given = parts.len() as u64;
    for (index, (file, header)) in parts.iter().zip(headers).enumerate() {
        let names = place.names();
        let named = Part::of(names[*file]);
        let of = header.number("split.count").filter(|of| *of > 0);
        let of = of.or(named.map(|part| part.of)).unwrap_or(1);
        let number = header
            .number("split.no")
            .map(|number| number.saturating_add(1));
        let number = number.or(named.map(|part| part.number)).unwrap_or(1);
        let wrong = |reason: String| FactsError::Parts {
            file: place.shown(*file),
            part: number,
            of,
            reason,
        };
        if of != given {
            return Err(wrong(format!("there are {given} here")));
        }
        if number != index as u64 + 1 {
            return Err(wrong(format!(
                "it stands in the place of part {}",
                index + 1
            )));
        }
    }
    Ok(())
}

async fn described(place: &impl Place, file: usize) -> Result<ModelFacts, FactsError> {
    let text = whole(place, file, repository::CONFIG_LIMIT_BYTES).await?;
    repository::describe(&text).map_err(|reason| FactsError::Header {
        file: place.shown(file),
        reason,
    })
}

/// Adds how much the weights are: by the index, else by the headers, else by the sizes of files.
async fn weigh(
    place: &impl Place,
    facts: &mut ModelFacts,
    index: Option<usize>,
    weights: &[usize],
) -> Result<(), FactsError> {
    facts.files = Some(weights.len() as u64).filter(|files| *files > 0);
    if let Some(file) = index {
        let text = whole(place, file, repository::INDEX_LIMIT_BYTES).await?;
        let index = repository::index(&text).map_err(|reason| FactsError::Header {
            file: place.shown(file),
            reason,
        })?;
        facts.weight_bytes = index.total_bytes;
        let counted = |bytes| repository::parameters(bytes, facts);
        facts.parameters = index.parameters.or(index.total_bytes.and_then(counted));
        facts.files = Some(index.files).filter(|files| *files > 0).or(facts.files);
    } else if !weights.is_empty() && weights.len() <= LIMIT_HEADERS {
        let (mut bytes, mut numbers) = (Some(0_u64), Some(0_u64));
        for file in weights {
            let header = grow(place, *file, gguf::LIMIT_BYTES, safetensors::Header::read).await?;
            if let Some(has) = place.size_bytes(*file)
                && has < header.end
            {
                return Err(FactsError::CutOff {
                    file: place.shown(*file),
                    needs: header.end,
                    has,
                });
            }
            bytes = bytes.and_then(|sum| sum.checked_add(header.tensor_bytes));
            numbers = numbers.and_then(|sum| sum.checked_add(header.numbers));
            if facts.quantisation.is_none() {
                facts.quantisation = header.usual_type().map(str::to_owned);
            }
        }
        facts.weight_bytes = bytes;
        // Where several weights share a number, their number is not that of numbers.
        let plain = facts.quantisation.as_deref().and_then(safetensors::width);
        facts.parameters = numbers.filter(|_| plain.is_some());
    }
    if facts.weight_bytes.is_none() && !weights.is_empty() {
        facts.weight_bytes = describe::sum(weights.iter().map(|file| place.size_bytes(*file)));
    }
    Ok(())
}

/// A file that is read whole, of bounded size.
async fn whole(place: &impl Place, file: usize, limit: u64) -> Result<Vec<u8>, FactsError> {
    let mut bytes = Vec::new();
    let mut to = FIRST_BYTES;
    loop {
        place.more(file, &mut bytes, to).await?;
        if (bytes.len() as u64) < to {
            return Ok(bytes);
        }
        if to >= limit {
            return Err(FactsError::Header {
                file: place.shown(file),
                reason: HeaderError::TooLong { limit },
            });
        }
        to = (to * GROWTH).min(limit);
    }
}

/// Reads a header from the first bytes of a file, more of them as long as it says that it needs them.
async fn grow<T>(
    place: &impl Place,
    file: usize,
    limit: u64,
    read: impl Fn(&[u8]) -> Result<T, HeaderError>,
) -> Result<T, FactsError> {
    let mut bytes = Vec::new();
    let mut to = FIRST_BYTES;
    loop {
        place.more(file, &mut bytes, to).await?;
        let ended = (bytes.len() as u64) < to || to > limit;
        match read(&bytes) {
            Ok(header) => return Ok(header),
            Err(HeaderError::Truncated { .. }) if !ended => {}
            Err(reason) => {
                return Err(FactsError::Header {
                    file: place.shown(file),
                    reason,
                });
            }
        }
        to = (to * GROWTH).min(limit + FIRST_BYTES);
    }
}
