use super::*;
use crate::policy::Setting;

fn told(result: Result<(), Refusal>) -> String {
    let refusal = result.expect_err("refused");
    let details: Vec<String> = refusal.details().into_iter().map(|d| d.text).collect();
    format!("{refusal} | {} | {}", details.join("; "), refusal.allow)
}

fn machine(line: usize) -> Origin {
    Origin::File {
        path: "/etc/engine-host/policy.yaml".into(),
        line,
        ceiling: true,
    }
}

#[test]
fn a_refusal_names_the_setting_and_the_line_or_flag_that_would_allow_it() {
    let mut policy = Policy::default();
    let packages = ["cmake".to_owned(), "ninja-build".to_owned()];
    let planned = ["github.com".to_owned()];
    assert_eq!(policy.allow_host("GitHub.com", &planned), Ok(()));
    assert_eq!(policy.allow_tool("git"), Ok(()));
    let mut all = vec![
        told(policy.allow_package_install(&packages)),
        told(policy.allow_aur_install(&packages)),
        told(policy.allow_binary_download("https://h/x")),
        told(policy.allow_host("evil.example", &planned)),
    ];
    policy.allow_package_installs = Setting {
        value: true,
        origin: Origin::Flag("--allow-package-installs".into()),
    };
    all.push(told(policy.allow_aur_install(&packages)));
    policy.allow_package_installs = Setting {
        value: false,
        origin: machine(4),
    };
    policy.network = Setting {
        value: NetworkPolicy::Offline,
        origin: Origin::Flag("--offline".into()),
    };
    policy.tools = Setting {
        value: Some(vec!["git".into()]),
        origin: machine(9),
    };
    all.push(told(policy.allow_package_install(&packages)));
    all.push(told(policy.allow_host("github.com", &planned)));
    all.push(told(policy.allow_tool("cmake")));
    policy.network = Setting {
        value: NetworkPolicy::Only(vec!["*.example.org".into()]),
        origin: machine(7),
    };
    assert_eq!(policy.allow_host("a.example.org", &planned), Ok(()));
    all.push(told(policy.allow_host("example.org", &planned)));
    insta::assert_snapshot!(all.join("\n"), @r"
    policy does not allow installing packages (cmake, ninja-build) |  | add `--allow-package-installs`, or write `policy: {allow_package_installs: true}` in the pool file
    policy does not allow installing packages (cmake, ninja-build) |  | add `--allow-package-installs`, or write `policy: {allow_package_installs: true}` in the pool file
    policy does not allow downloading programs (https://h/x) |  | add `--allow-binary-downloads`, or write `policy: {allow_binary_downloads: true}` in the pool file
    policy does not allow reaching `evil.example` |  | the plan does not name `evil.example`; to allow it, list every host under `policy: {network: […]}` in the pool file
    policy does not allow building packages of the Arch User Repository (cmake, ninja-build) |  | write `policy: {allow_aur: true}` in the pool file
    policy does not allow installing packages (cmake, ninja-build) | `allow_package_installs` is set by /etc/engine-host/policy.yaml:4 | change line 4 of /etc/engine-host/policy.yaml, the limit for this machine or user, to `allow_package_installs: true`
    policy does not allow reaching `github.com` | `network` is set by --offline | leave `--offline` out
    policy does not allow running `cmake` | `tools` is set by /etc/engine-host/policy.yaml:9 | change line 9 of /etc/engine-host/policy.yaml, the limit for this machine or user, to `tools: [git, cmake]`
    policy does not allow reaching `example.org` | `network` is set by /etc/engine-host/policy.yaml:7 | change line 7 of /etc/engine-host/policy.yaml, the limit for this machine or user, to `network: ['*.example.org', example.org]`
    ");
}
