//! Where a bucket is: endpoint, region, and which of the two shapes its URLs have.

use url::Url;

use super::{S3Error, profile::Profile, sign::encode};
use crate::{config::environment::Environment, net::is_loopback};

/// The region that stands for none.
const DEFAULT_REGION: &str = "us-east-1";

/// Where buckets are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Settings {
    pub(super) region: String,
    /// The server, where it is not AWS's.
    pub(super) endpoint: Option<Url>,
    /// The service that gives out keys for roles, likewise.
    sts_endpoint: Option<Url>,
    /// Whether a server of one's own has the bucket in its host's name.
    virtual_hosts: bool,
}

impl Settings {
    /// From the environment, else the profile, in the order of AWS's own tools.
    pub(super) fn new(environment: &Environment, profile: &Profile) -> Result<Self, S3Error> {
        let variables = ["AWS_REGION", "AWS_DEFAULT_REGION"];
        let region = variables.iter().find_map(|name| environment.get(name));
        let region = region.or_else(|| profile.get("region"));
        let region = region.unwrap_or(DEFAULT_REGION);
        if !is_region(region) {
            return Err(S3Error::Setting {
                setting: "AWS_REGION",
                reason: format!("is `{region}`, which is no region"),
            });
        }
        Ok(Self {
            region: region.to_owned(),
            endpoint: endpoint(environment, profile, &S3)?,
            sts_endpoint: endpoint(environment, profile, &STS)?,
            virtual_hosts: profile.get("s3.addressing_style") == Some("virtual"),
        })
    }

    /// Whether what the server says could be anybody's words: the operator names it by http, and it is
    /// another machine.
    pub(super) fn is_open(&self) -> bool {
        let endpoint = self.endpoint.as_ref();
        endpoint.is_some_and(|url| url.scheme() == "http" && !is_loopback(url))
    }

    /// The URL of a bucket, and of a key in it where one is given.
    pub(super) fn url(&self, bucket: &str, key: &str) -> Result<Url, S3Error> {
        let key: Vec<String> = key.split('/').map(encode).collect();
        let key = key.join("/");
        let text = match &self.endpoint {
            Some(endpoint) if self.virtual_hosts && !bucket.contains('.') => {
                let authority = &endpoint[url::Position::BeforeHost..url::Position::BeforePath];
                let path = endpoint.path().trim_end_matches('/');
                format!("{}://{bucket}.{authority}{path}/{key}", endpoint.scheme())
            }
            Some(endpoint) => {
                format!("{}/{bucket}/{key}", endpoint.as_str().trim_end_matches('/'))
            }
            // A certificate for `*.s3…` does not hold for a bucket with dots.
            None if bucket.contains('.') => format!("https://{}/{bucket}/{key}", self.aws_host()),
            None => format!("https://{bucket}.{}/{key}", self.aws_host()),
        };
        Url::parse(&text).map_err(|error| S3Error::Setting {
            setting: "AWS_ENDPOINT_URL_S3",
            reason: format!("gives no URL for bucket `{bucket}`: {error}"),
        })
    }

    /// The service that gives out keys for roles: the region's own.
    pub(super) fn sts(&self) -> Result<Url, S3Error> {
        if let Some(endpoint) = &self.sts_endpoint {
            return Ok(endpoint.clone());
        }
        let text = format!("https://sts.{}.{}/", self.region, self.suffix());
        Url::parse(&text).map_err(|error| S3Error::Setting {
            setting: "AWS_REGION",
            reason: format!("gives no URL of STS: {error}"),
        })
    }

    fn aws_host(&self) -> String {
        format!("s3.{}.{}", self.region, self.suffix())
    }

    fn suffix(&self) -> &'static str {
        match self.region.starts_with("cn-") {
            true => "amazonaws.com.cn",
            false => "amazonaws.com",
        }
    }
}

/// How a service's endpoint is set: its variable, and its setting in a `[services …]` section.
struct Names {
    variable: &'static str,
    setting: &'static str,
    shown: &'static str,
}

const S3: Names = Names {
    variable: "AWS_ENDPOINT_URL_S3",
    setting: "s3.endpoint_url",
    shown: "`s3.endpoint_url`",
};

const STS: Names = Names {
    variable: "AWS_ENDPOINT_URL_STS",
    setting: "sts.endpoint_url",
    shown: "`sts.endpoint_url`",
};

fn endpoint(
    environment: &Environment,
    profile: &Profile,
    names: &Names,
) -> Result<Option<Url>, S3Error> {
    if is_true(environment, "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS") {
        return Ok(None);
    }
    let variable = |name: &'static str| Some((name, environment.get(name)?));
    let setting = |name, value: Option<_>| Some((name, value?));
    let found = variable(names.variable)
        .or_else(|| variable("AWS_ENDPOINT_URL"))
        .or_else(|| setting(names.shown, profile.service(names.setting)))
        .or_else(|| setting("`endpoint_url`", profile.get("endpoint_url")));
    let Some((setting, text)) = found else {
        return Ok(None);
    };
    let bad = |reason: &str| S3Error::Setting {
        setting,
        reason: reason.to_owned(),
    };
    let url = Url::parse(text).map_err(|_| bad("is no URL"))?;
    if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
        return Err(bad("is no http or https URL"));
    }
    if url.password().is_some() || !url.username().is_empty() || url.query().is_some() {
        return Err(bad("has more than a host and a path: keys are set apart"));
    }
    Ok(Some(url))
}

/// Whether a variable says yes.
pub(super) fn is_true(environment: &Environment, name: &str) -> bool {
    let value = environment.get(name).map(str::to_ascii_lowercase);
    matches!(value.as_deref(), Some("true" | "1" | "yes"))
}

/// Whether a text can stand in a host's name and in a signature.
pub(super) fn is_region(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    !text.is_empty() && text.len() <= 64 && !text.starts_with('-') && text.bytes().all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(pairs: &[(&str, &str)]) -> Result<Settings, S3Error> {
        let environment = Environment::from_pairs(pairs.iter().copied());
        Settings::new(&environment, &Profile::read(&environment).unwrap())
    }

    fn url(pairs: &[(&str, &str)], bucket: &str, key: &str) -> String {
        settings(pairs).unwrap().url(bucket, key).unwrap().into()
    }

    #[test]
    fn buckets_of_aws_are_hosts_and_those_with_dots_are_paths() {
        let region = [("AWS_REGION", "eu-west-1")];
        assert_eq!(
            url(&region, "models", "a b/x+y.gguf"),
            "https://models.s3.eu-west-1.amazonaws.com/a%20b/x%2By.gguf"
        );
        assert_eq!(
            url(&region, "my.models", "x"),
            "https://s3.eu-west-1.amazonaws.com/my.models/x"
        );
        assert_eq!(
            url(&[("AWS_DEFAULT_REGION", "cn-north-1")], "m", ""),
            "https://m.s3.cn-north-1.amazonaws.com.cn/"
        );
    }

    #[test]
    fn the_first_endpoint_that_is_set_is_used_with_buckets_as_paths() {
        let pairs = [
            ("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9000"),
            ("AWS_ENDPOINT_URL", "https://other"),
        ];
        assert_eq!(
            url(&pairs, "b", "k//é"),
            "http://127.0.0.1:9000/b/k//%C3%A9"
        );
        assert_eq!(url(&[pairs[1]], "b", "/k"), "https://other/b//k");
        let with_path = [("AWS_ENDPOINT_URL", "https://gateway/s3/")];
        assert_eq!(url(&with_path, "b", "k"), "https://gateway/s3/b/k");
        let ignored = [pairs[1], ("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "true")];
        assert_eq!(settings(&ignored).unwrap().endpoint, None);
    }

    #[test]
    fn a_profile_may_set_endpoint_region_and_style() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("config");
        let text = "[default]\nregion = lab\nendpoint_url = http://lab:9000/x\n\
                    s3 =\n  addressing_style = virtual\n";
        std::fs::write(&file, text).unwrap();
        let environment = Environment::default().with("AWS_CONFIG_FILE", &file);
        let profile = Profile::read(&environment).unwrap();
        let settings = Settings::new(&environment, &profile).unwrap();
        assert_eq!(settings.region, "lab");
        assert!(settings.is_open());
        assert_eq!(
            settings.url("b", "k").unwrap().as_str(),
            "http://b.lab:9000/x/k"
        );
    }

    #[test]
    fn what_is_no_endpoint_or_region_is_refused_by_name_without_its_secrets() {
        for value in [
            "x",
            "ftp://x",
            "https://user:hunter22@x",
            "https://x?token=hunter22",
        ] {
            let error = settings(&[("AWS_ENDPOINT_URL", value)]).unwrap_err();
            assert!(
                error.to_string().starts_with("AWS_ENDPOINT_URL "),
                "{error}"
            );
            assert!(!error.to_string().contains("hunter22"), "{error}");
        }
        assert!(settings(&[("AWS_REGION", "evil.test/")]).is_err());
    }

    proptest::proptest! {
        #[test]
        fn every_key_has_a_url_of_its_own_below_its_bucket(
            one in "[-a.%/ ?#+~é:@]{1,8}",
            other in "[-a.%/ ?#+~é:@]{1,8}",
        ) {
            // What a reference refuses as a key: a part that leads elsewhere.
            let is_key = |key: &String| !key.split('/').any(|part| matches!(part, "." | ".."));
            for pairs in [&[("AWS_REGION", "r")][..], &[("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9000/s3")]] {
                let bucket = url(pairs, "bucket", "");
                let mut urls = Vec::new();
                for key in [&one, &other].into_iter().filter(|key| is_key(key)) {
                    let url = Url::parse(&url(pairs, "bucket", key)).unwrap();
                    let rest = url.as_str().strip_prefix(&bucket).expect("it is in its bucket");
                    proptest::prop_assert_eq!(rest.split('/').count(), key.split('/').count());
                    proptest::prop_assert!(url.query().is_none() && url.fragment().is_none());
                    urls.push(url);
                }
                if let [first, second] = &urls[..] {
                    proptest::prop_assert_eq!(first == second, one == other);
                }
            }
        }
    }
}
