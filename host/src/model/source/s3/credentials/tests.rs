use std::collections::BTreeMap;

use super::*;
use crate::{
    config::environment::Environment,
    model::source::{
        resolve,
        s3::{
            self,
            sign::{self, Scope},
        },
        testing::Bench,
    },
    narrate::Secrets,
    net::{
        Transfer,
        testing::{Reply, Server, open_net},
    },
};

const GIVEN: &str = r#"{"AccessKeyId": "AKGIVEN", "SecretAccessKey": "given-secret",
    "Token": "given-token", "Expiration": "2026-01-02T03:04:05Z"}"#;

async fn found(environment: Environment) -> Result<Option<Signer>, S3Error> {
    let secrets = Secrets::default();
    let profile = Profile::read(&environment)?;
    let settings = Settings::new(&environment, &profile)?;
    let account = Account {
        net: &open_net(),
        environment: &environment,
        secrets: &secrets,
        cancel: &tokio_util::sync::CancellationToken::new(),
    };
    let signer = find(&account, &profile, &settings).await?;
    if let Some(signer) = &signer {
        assert_eq!(secrets.mask(&signer.key.secret), "***");
    }
    Ok(signer)
}

fn environment(pairs: &[(&str, &str)]) -> Environment {
    Environment::from_pairs(pairs.iter().copied())
}

#[tokio::test]
async fn the_environment_goes_first_and_a_named_profile_before_it() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("credentials");
    let text = "[lab]\naws_access_key_id = LAB\naws_secret_access_key = lab-secret\n";
    fs::write(&file, text).unwrap();
    let keys = environment(&[
        ("AWS_ACCESS_KEY_ID", "ENV"),
        ("AWS_SECRET_ACCESS_KEY", "env-secret"),
        ("AWS_SESSION_TOKEN", "env-token"),
    ]);
    let keys = keys.with("AWS_SHARED_CREDENTIALS_FILE", &file);
    let signer = found(keys.clone()).await.unwrap().unwrap();
    assert_eq!(signer.key.token.as_deref(), Some("env-token"));
    let signer = found(keys.clone().with("AWS_PROFILE", "lab"))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(signer.key.id, "LAB");
    assert_eq!(signer.from, format!("profile `lab` of {}", file.display()));
    assert_eq!(
        found(keys.with("AWS_NO_SIGN_REQUEST", "true"))
            .await
            .unwrap(),
        None
    );
}

#[tokio::test]
async fn half_a_pair_and_ways_that_are_not_followed_are_said() {
    let error = found(environment(&[("AWS_ACCESS_KEY_ID", "ENV")]))
        .await
        .unwrap_err();
    assert!(
        error.to_string().contains("AWS_SECRET_ACCESS_KEY"),
        "{error}"
    );
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("config");
    fs::write(&file, "[default]\nsso_session = work\n").unwrap();
    let sso = Environment::default().with("AWS_CONFIG_FILE", &file);
    let error = found(sso).await.unwrap_err();
    assert!(matches!(
        error,
        S3Error::Indirect {
            setting: "sso_session",
            ..
        }
    ));
}

#[tokio::test]
async fn a_container_is_given_keys_for_its_token() {
    let server = Server::start(|_, request| match request.headers.get("authorization") {
        Some(token) if token == "container-token" => Reply::ok(GIVEN),
        _ => Reply::status(401),
    });
    let url = server.url("keys").to_string();
    let full = environment(&[("AWS_CONTAINER_CREDENTIALS_FULL_URI", url.as_str())]);
    let error = found(full.clone()).await.unwrap_err();
    assert!(error.to_string().ends_with("it answered 401"), "{error}");
    let signer = found(full.with("AWS_CONTAINER_AUTHORIZATION_TOKEN", "container-token")).await;
    let signer = signer.unwrap().unwrap();
    assert_eq!(signer.key.id, "AKGIVEN");
    assert_eq!(signer.key.token.as_deref(), Some("given-token"));
    assert_eq!(
        signer.expires,
        Some("2026-01-02T03:04:05Z".parse().unwrap())
    );
    // Anybody could answer there.
    let far = [(
        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
        "http://192.0.2.1/keys",
    )];
    assert!(matches!(
        found(environment(&far)).await,
        Err(S3Error::Service { .. })
    ));
}

#[tokio::test]
async fn an_instance_is_asked_with_a_token_and_only_where_it_answers() {
    let server = Server::start(|_, request| {
        let token = request
            .headers
            .get("x-aws-ec2-metadata-token")
            .map(String::as_str);
        match (request.path.as_str(), token) {
            ("/latest/api/token", None) => Reply::ok("imds-token"),
            ("/latest/meta-data/iam/security-credentials/", Some("imds-token")) => {
                Reply::ok("my-role\n")
            }
            ("/latest/meta-data/iam/security-credentials/my-role", Some("imds-token")) => {
                Reply::ok(GIVEN)
            }
            _ => Reply::status(401),
        }
    });
    let url = server.url("").to_string();
    let instance = environment(&[("AWS_EC2_METADATA_SERVICE_ENDPOINT", url.as_str())]);
    let signer = found(instance.clone()).await.unwrap().unwrap();
    assert_eq!(signer.from, "the instance's metadata service");
    let disabled = instance.with("AWS_EC2_METADATA_DISABLED", "true");
    assert_eq!(found(disabled).await.unwrap(), None);
    let none = Server::start(|_, _| Reply::status(404));
    let url = none.url("").to_string();
    let none = environment(&[("AWS_EC2_METADATA_SERVICE_ENDPOINT", url.as_str())]);
    assert_eq!(found(none).await.unwrap(), None);
}

#[tokio::test]
async fn a_web_identity_is_exchanged_for_keys() {
    let server = Server::start(|number, _| match number {
        0 => Reply::ok(
            "<AssumeRoleWithWebIdentityResponse xmlns='https://sts.amazonaws.com/doc/2011-06-15/'>\
             <AssumeRoleWithWebIdentityResult><Credentials><AccessKeyId>AKWEB</AccessKeyId>\
             <SecretAccessKey>web-secret</SecretAccessKey><SessionToken>web-token</SessionToken>\
             <Expiration>2026-01-02T03:04:05Z</Expiration></Credentials>\
             </AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>",
        ),
        _ => Reply {
            status: 400,
            ..Reply::ok(
                "<ErrorResponse><Error><Code>ExpiredTokenException</Code></Error></ErrorResponse>",
            )
        },
    });
    let directory = tempfile::tempdir().unwrap();
    let token = directory.path().join("token");
    fs::write(&token, "ey.web.identity\n").unwrap();
    let url = server.url("").to_string();
    let pairs = [
        ("AWS_ROLE_ARN", "arn:aws:iam::1:role/r"),
        ("AWS_ENDPOINT_URL_STS", url.as_str()),
    ];
    let web = environment(&pairs).with("AWS_WEB_IDENTITY_TOKEN_FILE", &token);
    let signer = found(web.clone()).await.unwrap().unwrap();
    assert_eq!(signer.key.id, "AKWEB");
    assert_eq!(signer.key.token.as_deref(), Some("web-token"));
    let error = found(web).await.unwrap_err().to_string();
    assert!(
        error.contains("ExpiredTokenException") && !error.contains("ey.web"),
        "{error}"
    );
}

#[test]
fn hosts_that_give_out_keys_are_known_beforehand() {
    let hosts = |pairs: &[(&str, &str)]| super::super::hosts(&environment(pairs), "b");
    assert_eq!(
        hosts(&[("AWS_NO_SIGN_REQUEST", "1")]),
        ["b.s3.us-east-1.amazonaws.com"]
    );
    assert_eq!(hosts(&[])[0], "169.254.169.254");
    assert_eq!(
        hosts(&[("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "/v2/x")])[0],
        "169.254.170.2"
    );
    let web = [
        ("AWS_WEB_IDENTITY_TOKEN_FILE", "/x"),
        ("AWS_ROLE_ARN", "r"),
        ("AWS_REGION", "eu-west-1"),
    ];
    assert_eq!(hosts(&web)[0], "sts.eu-west-1.amazonaws.com");
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("config");
    let text = "[default]\nrole_arn = arn:aws:iam::1:role/r\ncredential_source = EcsContainer\n\
                region = eu-west-2\n";
    fs::write(&file, text).unwrap();
    let role = [("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "/v2/x")];
    let role = environment(&role).with("AWS_CONFIG_FILE", &file);
    let hosts = super::super::hosts(&role, "b");
    assert_eq!(hosts[..2], ["sts.eu-west-2.amazonaws.com", "169.254.170.2"]);
}

/// An STS that gives keys to who signs with those it knows, by id, and is asked for a role.
struct Sts {
    server: Server,
    url: String,
}

impl Sts {
    /// Gives the last of `keys`; the others may ask.
    fn knowing(keys: &'static [(&'static str, &'static str)]) -> Self {
        let server = Server::start(move |number, request| {
            let form: BTreeMap<String, String> = url::form_urlencoded::parse(&request.body)
                .into_owned()
                .collect();
            let signed = &request.headers["authorization"];
            let known = keys
                .iter()
                .find(|(id, _)| signed.contains(&format!("Credential={id}/")));
            let Some((id, secret)) = known else {
                return refusal(403, "InvalidClientTokenId");
            };
            if !is_signed(request, id, secret) || form["Version"] != "2011-06-15" {
                return refusal(403, "SignatureDoesNotMatch");
            }
            if !form["RoleArn"].starts_with("arn:aws:iam::") {
                return refusal(400, "ValidationError");
            }
            let (id, secret) = keys[(number + 1).min(keys.len() - 1)];
            Reply::ok(format!(
                "<AssumeRoleResponse xmlns='https://sts.amazonaws.com/doc/2011-06-15/'>\
                 <AssumeRoleResult><AssumedRoleUser><Arn>{}</Arn></AssumedRoleUser><Credentials>\
                 <AccessKeyId>{id}</AccessKeyId><SecretAccessKey>{secret}</SecretAccessKey>\
                 <SessionToken>token-of-{number}</SessionToken>\
                 <Expiration>2099-01-02T03:04:05Z</Expiration></Credentials></AssumeRoleResult>\
                 </AssumeRoleResponse>",
                form["RoleArn"]
            ))
        });
        let url = server.url("").to_string();
        Self { server, url }
    }

    fn forms(&self) -> Vec<BTreeMap<String, String>> {
        let requests = self.server.requests().into_iter();
        requests
            .map(|request| {
                let pairs = url::form_urlencoded::parse(&request.body);
                pairs.into_owned().collect()
            })
            .collect()
    }
}

fn refusal(status: u16, code: &str) -> Reply {
    let text = format!("<ErrorResponse><Error><Code>{code}</Code></Error></ErrorResponse>");
    Reply {
        status,
        ..Reply::ok(text)
    }
}

/// Whether a request is what this key signs at its time, for STS in its region.
fn is_signed(request: &crate::net::testing::Request, id: &str, secret: &str) -> bool {
    let sent = &request.headers["authorization"];
    let part = |name: &str| {
        let (_, rest) = sent.split_once(&format!("{name}=")).unwrap();
        rest.split(',').next().unwrap().to_owned()
    };
    let credential = part("Credential");
    let scope: Vec<&str> = credential.split('/').collect();
    assert_eq!(scope[3..], ["sts", "aws4_request"]);
    let (date, time) = request.headers["x-amz-date"].split_once('T').unwrap();
    assert_eq!(scope[1], date);
    let mut headers = HeaderMap::new();
    for name in part("SignedHeaders").split(';').filter(|name| {
        // What is added by signing is added again.
        ![
            "host",
            "x-amz-date",
            "x-amz-content-sha256",
            "x-amz-security-token",
        ]
        .contains(name)
    }) {
        let name: reqwest::header::HeaderName = name.parse().unwrap();
        headers.insert(&name, request.headers[name.as_str()].parse().unwrap());
    }
    let key = Key {
        id: id.to_owned(),
        secret: secret.to_owned(),
        token: request.headers.get("x-amz-security-token").cloned(),
    };
    let at = format!(
        "{}-{}-{}T{}:{}:{}Z",
        &date[..4],
        &date[4..6],
        &date[6..],
        &time[..2],
        &time[2..4],
        &time[4..6]
    );
    let scope = Scope {
        service: "sts",
        region: scope[2],
        at: at.parse().unwrap(),
    };
    let url = format!("http://{}{}", request.headers["host"], request.path);
    let url = url.parse().unwrap();
    sign::sign(&key, scope, ("POST", &url), &mut headers, &request.body);
    headers["authorization"] == sent.as_str()
}

/// A configuration file, for this STS.
fn configured(sts: &Sts, text: &str) -> (Environment, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("config");
    fs::write(&file, text).unwrap();
    let environment = environment(&[
        ("AWS_ENDPOINT_URL_STS", sts.url.as_str()),
        ("AWS_EC2_METADATA_DISABLED", "true"),
        ("AWS_REGION", "eu-west-1"),
        ("PATH", "/usr/bin:/bin"),
    ]);
    (environment.with("AWS_CONFIG_FILE", &file), directory)
}

#[tokio::test]
async fn a_role_is_taken_on_with_another_profiles_keys_and_roles_with_roles() {
    let sts = Sts::knowing(&[
        ("AKBASE", "base-secret"),
        ("AKFIRST", "first-secret"),
        ("AKLAST", "last-secret"),
    ]);
    let (environment, _directory) = configured(
        &sts,
        "[profile base]\naws_access_key_id = AKBASE\naws_secret_access_key = base-secret\n\
         [profile first]\nrole_arn = arn:aws:iam::1:role/first\nsource_profile = base\n\
         external_id = a b&c\nduration_seconds = 900\nrole_session_name = me\n\
         [profile last]\nrole_arn = arn:aws:iam::2:role/last\nsource_profile = first\n",
    );
    let signer = found(environment.with("AWS_PROFILE", "last")).await;
    let signer = signer.unwrap().unwrap();
    assert_eq!(signer.key.id, "AKLAST");
    assert_eq!(signer.key.token.as_deref(), Some("token-of-1"));
    assert_eq!(
        signer.expires,
        Some("2099-01-02T03:04:05Z".parse().unwrap())
    );
    assert!(
        signer
            .from
            .starts_with("role arn:aws:iam::2:role/last, taken on with role arn:aws:iam::1:"),
        "{}",
        signer.from
    );
    let forms = sts.forms();
    assert_eq!(forms[0]["RoleArn"], "arn:aws:iam::1:role/first");
    assert_eq!(forms[0]["ExternalId"], "a b&c");
    assert_eq!(forms[0]["DurationSeconds"], "900");
    assert_eq!(forms[0]["RoleSessionName"], "me");
    assert_eq!(forms[1]["RoleSessionName"], "engine-host");
    assert_eq!(
        sts.server.requests()[1].headers["x-amz-security-token"],
        "token-of-0"
    );
}

#[tokio::test]
async fn a_role_may_be_taken_on_by_the_environment_itself_or_a_program() {
    let sts = Sts::knowing(&[("AKBASE", "base-secret"), ("AKROLE", "role-secret")]);
    let text = "[profile self]\nrole_arn = arn:aws:iam::1:role/r\nsource_profile = self\n\
         aws_access_key_id = AKBASE\naws_secret_access_key = base-secret\n\
         [profile env]\nrole_arn = arn:aws:iam::1:role/r\ncredential_source = Environment\n\
         [profile tool]\nrole_arn = arn:aws:iam::1:role/r\nsource_profile = printed\n\
         [profile printed]\ncredential_process = sh -c \"cat $KEYS\"\n";
    for name in ["self", "env", "tool"] {
        let sts_one = Sts::knowing(&[("AKBASE", "base-secret"), ("AKROLE", "role-secret")]);
        let (environment, directory) = configured(&sts_one, text);
        let keys = directory.path().join("keys");
        let printed =
            r#"{"Version": 1, "AccessKeyId": "AKBASE", "SecretAccessKey": "base-secret"}"#;
        fs::write(&keys, printed).unwrap();
        let environment = environment
            .with("AWS_ACCESS_KEY_ID", "AKBASE")
            .with("AWS_SECRET_ACCESS_KEY", "base-secret")
            .with("KEYS", &keys)
            .with("AWS_PROFILE", name);
        let signer = found(environment).await.unwrap().unwrap();
        assert_eq!(signer.key.id, "AKROLE", "{name}");
    }
    let (environment, _directory) = configured(&sts, text);
    let error = found(environment.with("AWS_PROFILE", "env")).await;
    let error = error.unwrap_err().to_string();
    assert!(
        error.ends_with("is `Environment`, which has no AWS_ACCESS_KEY_ID"),
        "{error}"
    );
}

#[tokio::test]
async fn objects_are_fetched_from_the_real_server_with_the_keys_of_a_role() {
    let s3 = s3::testing::Server::start();
    s3.place("m.gguf", b"the model");
    let sts = Sts::knowing(&[
        ("AKBASE", "base-secret"),
        (s3::testing::KEY, s3::testing::SECRET),
    ]);
    let (environment, directory) = configured(
        &sts,
        "[default]\nrole_arn = arn:aws:iam::1:role/r\nsource_profile = base\n\
         [profile base]\naws_access_key_id = AKBASE\naws_secret_access_key = base-secret\n",
    );
    let endpoint = s3.open_environment();
    let mut bench = Bench::new("s3://models/m.gguf");
    bench.environment = environment.with(
        "AWS_ENDPOINT_URL_S3",
        endpoint.get("AWS_ENDPOINT_URL_S3").unwrap(),
    );
    let model = resolve(&bench.place(), &bench.reference()).await.unwrap();
    let url = &model.files[0].sources[0].url;
    assert!(url.query().unwrap().contains("Security-Token=token-of-0"));
    let transfer = Transfer {
        actor: crate::narrate::Actor::ModelProvisioner,
        sources: model.files[0].sources.clone(),
        digest: None,
        size_bytes: Some(9),
        limit_bytes: None,
        partial: directory.path().join("partial"),
        task: "download".to_owned(),
        kind: "s3",
    };
    let fetched = bench.net.fetch(&transfer, &bench.narrator, &bench.cancel);
    let fetched = fetched.await.unwrap();
    assert_eq!(fs::read(fetched.path).unwrap(), b"the model");
    assert_eq!(sts.forms().len(), 1);
}

#[tokio::test]
async fn a_program_that_takes_its_time_is_cancelled() {
    let sts = Sts::knowing(&[]);
    let text = "[default]\ncredential_process = sleep 50\n";
    let (environment, _directory) = configured(&sts, text);
    let mut bench = Bench::new("s3://models/m.gguf");
    bench.environment = environment;
    bench.cancel.cancel();
    let error = resolve(&bench.place(), &bench.reference()).await;
    assert!(error.unwrap_err().is_cancelled());
}

#[tokio::test]
async fn what_sts_refuses_is_told_without_a_secret() {
    let sts = Sts::knowing(&[("AKOTHER", "x")]);
    let (environment, _directory) = configured(
        &sts,
        "[default]\nrole_arn = arn:aws:iam::1:role/r\nsource_profile = base\n\
         [profile base]\naws_access_key_id = AKBASE\naws_secret_access_key = base-secret\n",
    );
    let error = found(environment).await.unwrap_err();
    let told = format!("{error:?} {error}");
    assert!(told.contains("403 InvalidClientTokenId"), "{told}");
    assert!(!told.contains("base-secret"), "{told}");
}

#[tokio::test]
async fn profiles_that_lead_nowhere_or_need_a_person_are_said_by_name() {
    let sts = Sts::knowing(&[]);
    let role = "role_arn = arn:aws:iam::1:role/r\n";
    let cases = [
        (
            format!("{role}source_profile = default"),
            "leads back to itself",
        ),
        (
            format!("{role}source_profile = gone"),
            "no AWS profile `gone`",
        ),
        (
            format!("{role}source_profile = empty\n[profile empty]\nregion = x"),
            "which has no keys",
        ),
        (role.to_owned(), "wants `source_profile`"),
        (
            format!("{role}source_profile = a\ncredential_source = Environment"),
            "excludes",
        ),
        (
            format!("{role}credential_source = Moon"),
            "is neither Environment",
        ),
        (
            format!("{role}credential_source = EcsContainer"),
            "names no service",
        ),
        (
            format!("{role}source_profile = a\nmfa_serial = 1"),
            "by `mfa_serial`",
        ),
        (
            format!("{role}source_profile = s\n[profile s]\nsso_session = x"),
            "profile `s` gets its keys by `sso_session`",
        ),
    ];
    for (text, told) in cases {
        let (environment, _directory) = configured(&sts, &format!("[default]\n{text}\n"));
        let error = found(environment).await.unwrap_err();
        assert!(error.to_string().contains(told), "{text}: {error}");
    }
    assert_eq!(sts.server.requests().len(), 0);
}

#[tokio::test]
async fn programs_that_fail_or_print_nonsense_are_told_without_their_arguments() {
    let sts = Sts::knowing(&[]);
    let cases = [
        ("sh -c 'echo; echo no ticket >&2; exit 3'", "exit code 3"),
        ("sh -c 'echo the-secret'", "what it printed is none"),
        ("no-such-tool the-secret", "`no-such-tool` is neither"),
        ("./tool the-secret", "`./tool` is neither"),
        (
            "/nowhere/tool the-secret",
            "there is no file `/nowhere/tool`",
        ),
        ("sh -c 'the-secret", "a quote is not closed"),
    ];
    for (command, told) in cases {
        let (environment, _directory) = configured(
            &sts,
            &format!("[default]\ncredential_process = {command}\n"),
        );
        let error = found(environment).await.unwrap_err();
        let text = error.to_string();
        assert!(text.contains(told), "{command}: {text}");
        assert!(
            text.starts_with("`credential_process` of profile `default`"),
            "{text}"
        );
        assert!(!format!("{error:?}").contains("the-secret"), "{error:?}");
    }
}
