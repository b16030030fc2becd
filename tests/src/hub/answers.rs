//! What the hub answers about a repository, and how it refuses.

use std::sync::Arc;

use serde_json::{Value, json};

use super::{
    HUB_TOKEN,
    repository::{Access, Kept, KeptFile},
};
use crate::Reply;

/// A repository that was asked for, at a commit.
pub(super) struct Found {
    pub(super) name: String,
    pub(super) commit: String,
    pub(super) repository: Arc<Kept>,
}

impl Found {
    /// Whether the files are given out.
    pub(super) fn check(&self, token: Option<&str>) -> Result<(), Reply> {
        match self.repository.access {
            Access::Gated if !is_signed(token) => Err(refusal(
                401,
                "GatedRepo",
                &format!("Access to model {} is restricted.", self.name),
            )),
            _ => Ok(()),
        }
    }
}

pub(super) fn is_signed(token: Option<&str>) -> bool {
    token.is_some_and(|token| token == format!("Bearer {HUB_TOKEN}"))
}

pub(super) fn json_reply(value: &Value) -> Reply {
    let text = value.to_string().into_bytes();
    Reply::of(200, text).with("Content-Type", "application/json; charset=utf-8")
}

pub(super) fn refusal(status: u16, code: &str, message: &str) -> Reply {
    let text = json!({ "error": message }).to_string().into_bytes();
    let reply = Reply::of(status, text).with("X-Error-Message", message);
    match code {
        "" => reply,
        code => reply.with("X-Error-Code", code),
    }
}

/// What is in git.
pub(super) fn raw(found: &Found, path: &str) -> Result<Reply, Reply> {
    let file = found.repository.files.get(path);
    let file = file.ok_or_else(|| refusal(404, "EntryNotFound", "Entry not found"))?;
    Ok(match &file.pointer {
        Some(pointer) => Reply::of(200, pointer.clone().into_bytes()),
        None => Reply::of(200, Arc::clone(&file.content)),
    })
}

pub(super) fn info(found: &Found, blobs: bool) -> Reply {
    let sibling = |(path, file): (&String, &KeptFile)| {
        let size = file.content.len();
        match (blobs, &file.pointer) {
            (false, _) => json!({ "rfilename": path }),
            (true, None) => json!({
                "rfilename": path, "size": size, "blobId": file.git_blob,
            }),
            (true, Some(pointer)) => json!({
                "rfilename": path, "size": size, "blobId": file.git_blob,
                "lfs": { "sha256": file.sha256, "size": size, "pointerSize": pointer.len() },
            }),
        }
    };
    let repository = &found.repository;
    let siblings: Vec<Value> = repository.files.iter().map(sibling).collect();
    json_reply(&json!({
        "_id": "621ffdc036468d709f174328", "id": found.name, "modelId": found.name,
        "author": found.name.split('/').next(), "sha": found.commit,
        "lastModified": "2025-01-01T00:00:00.000Z", "createdAt": "2025-01-01T00:00:00.000Z",
        "private": repository.access == Access::Private,
        "gated": if repository.access == Access::Gated { json!("auto") } else { json!(false) },
        "disabled": false, "downloads": 1, "likes": 0, "tags": ["license:apache-2.0"],
        "cardData": { "license": "apache-2.0" }, "spaces": [], "siblings": siblings,
    }))
}

pub(super) fn tree(found: &Found) -> Reply {
    let entry = |(path, file): (&String, &KeptFile)| {
        let size = file.content.len();
        match &file.pointer {
            None => json!({ "type": "file", "oid": file.git_blob, "size": size, "path": path }),
            Some(pointer) => json!({
                "type": "file", "oid": file.git_blob, "size": size, "path": path,
                "lfs": { "oid": file.sha256, "size": size, "pointerSize": pointer.len() },
            }),
        }
    };
    let entries: Vec<Value> = found.repository.files.iter().map(entry).collect();
    json_reply(&Value::Array(entries))
}
