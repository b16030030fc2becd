//! Programs of the distribution's packages: a real pacman on a root and a repository of its own, and
//! stand-ins for what cannot be redirected.

use std::fs;

use engine_provider_api::{ArtifactState, PackageManager};

use super::*;
use crate::{
    fault::{Exit, Fault as _},
    policy::{NetworkPolicy, Setting},
};

fn install(more: Value) -> Step {
    let mut all = json!({"id": "get", "kind": "install-packages", "program": "toy",
        "packages": {"pacman": ["toy-engine"], "apt": ["toy-engine"], "dnf": ["toy-engine"]}});
    let given = more.as_object().unwrap().clone();
    all.as_object_mut().unwrap().extend(given);
    step(all)
}

fn look(bench: &Bench, step: &Step) -> Expected {
    expected_of(&bench.context, step, &Artifacts::new()).unwrap()
}

async fn go(bench: &Bench, step: &Step) -> Result<Artifact, ActError> {
    run(&bench.context, step, &Artifacts::new()).await
}

fn words(error: &ActError) -> String {
    crate::narrate::chain(error)
}

fn shell(directory: &Path, text: &str) {
    #[expect(
        clippy::disallowed_methods,
        reason = "tests make packages with the real tools"
    )]
    let output = std::process::Command::new("sh")
        .args(["-euc", text])
        .current_dir(directory)
        .output()
        .unwrap();
    assert!(output.status.success(), "{text}: {output:?}");
}

fn manager(bench: &mut Bench, family: &str, path: PathBuf) {
    let facts = Arc::make_mut(&mut bench.context.facts);
    facts.package_manager = Some(PackageManager {
        family: family.to_owned(),
        path: path.to_string_lossy().into_owned(),
    });
}

fn allow(bench: &mut Bench) {
    Arc::make_mut(&mut bench.context.policy).allow_package_installs = Setting::default_of(true);
}

/// A real pacman whose root, database and repository `toys` lie in the bench's home.
struct Pacman {
    bench: Bench,
}

impl Pacman {
    fn new() -> Self {
        let mut bench = bench(&[]);
        let home = bench.home.path().to_owned();
        for name in ["root", "db", "cache", "repo"] {
            fs::create_dir(home.join(name)).unwrap();
        }
        let config = format!(
            "[options]\nArchitecture = auto\nSigLevel = Never\n[toys]\nServer = file://{}/repo\n",
            home.display()
        );
        fs::write(home.join("pacman.conf"), config).unwrap();
        let real = which("pacman");
        let wrapper = home.join("pacman");
        script(
            &wrapper,
            &format!(
                "cd {}; echo \"$*\" >> calls\nexec {} --config pacman.conf --root root --dbpath db \
                 --cachedir cache --logfile log \"$@\"",
                home.display(),
                real.display()
            ),
        );
        manager(&mut bench, "pacman", wrapper);
        let this = Self { bench };
        this.release("toy-engine", "1.2-1", "toy");
        this
    }

    /// Puts a package into the repository: its newest, as repositories have no other.
    fn release(&self, name: &str, version: &str, program: &str) {
        let home = self.bench.home.path();
        shell(
            home,
            &format!(
                "rm -rf pkg; mkdir -p pkg/usr/bin; cd pkg
                 printf '#!/bin/sh\\necho {version}\\n' > usr/bin/{program}; chmod +x usr/bin/{program}
                 printf 'pkgname = {name}\\npkgbase = {name}\\npkgver = {version}\\npkgdesc = toy\\nurl = http://localhost\\nbuilddate = 1700000000\\npackager = t\\nsize = 100\\narch = any\\nprovides = something\\n' > .PKGINFO
                 tar -czf ../repo/{name}-{version}-any.pkg.tar.gz .PKGINFO usr
                 repo-add -q ../repo/toys.db.tar.gz ../repo/{name}-{version}-any.pkg.tar.gz"
            ),
        );
    }

    /// Runs it as an administrator would. `-Syy`: times of lists are compared by the second.
    fn type_in(&self, arguments: &str) {
        shell(self.bench.home.path(), &format!("./pacman {arguments}"));
    }

    /// Calls that changed something.
    fn changes(&self) -> Vec<String> {
        let calls = fs::read_to_string(self.bench.home.path().join("calls")).unwrap_or_default();
        let changes = calls
            .lines()
            .filter(|line| line.starts_with("-S") && !line.starts_with("-Si"));
        changes.map(str::to_owned).collect()
    }

    fn program(&self) -> PathBuf {
        self.bench.home.path().join("root/usr/bin/toy")
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn without_leave_nothing_is_installed_and_the_command_and_the_flag_are_named() {
    let pacman = Pacman::new();
    let step = install(json!({"repository": "toys"}));
    assert_eq!(
        look(&pacman.bench, &step).outlook,
        Outlook::Install {
            tools: vec!["toy".to_owned()],
            packages: vec!["toys/toy-engine".to_owned()],
            allowed: false
        }
    );
    let error = go(&pacman.bench, &step).await.unwrap_err();
    assert_eq!(error.exit(), Exit::Refused);
    let hints = error.hints();
    let command = hints[0].command.clone().unwrap();
    assert!(
        command.ends_with("pacman -S --needed toys/toy-engine"),
        "{command}"
    );
    assert!(
        hints[1].text.contains("--allow-package-installs"),
        "{hints:?}"
    );
    assert_eq!(pacman.changes(), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn with_leave_it_is_installed_once_and_then_used_as_it_is() {
    needs_root();
    let mut pacman = Pacman::new();
    allow(&mut pacman.bench);
    let step = install(json!({}));
    let artifact = go(&pacman.bench, &step).await.unwrap();
    assert_eq!(
        artifact.path,
        Some(pacman.program().to_string_lossy().into_owned())
    );
    assert_eq!(artifact.labels["version"], "1.2-1");
    assert_eq!(artifact.state, ArtifactState::Obtained);
    // The lists were missing; they are fetched once.
    let installs = ["-S --needed --noconfirm -- toy-engine"; 2];
    assert_eq!(
        pacman.changes(),
        [installs[0], "-Sy --noconfirm", installs[1]]
    );

    // A newer one in the repository changes nothing, and neither rights nor network are needed.
    pacman.release("toy-engine", "1.3-1", "toy");
    let policy = Arc::make_mut(&mut pacman.bench.context.policy);
    policy.allow_package_installs = Setting::default_of(false);
    policy.network = Setting::default_of(NetworkPolicy::Offline);
    let before = pacman.changes();
    let pinned = install(json!({"version": "1.2-1"}));
    for step in [&step, &pinned] {
        let expected = look(&pacman.bench, step);
        assert_eq!(expected.outlook, Outlook::Cached);
        assert_eq!(expected.artifact, artifact);
        assert_eq!(go(&pacman.bench, step).await.unwrap(), artifact);
    }
    assert_eq!(pacman.changes(), before);

    // Removed behind our back, it is missing at once.
    pacman.type_in("-R --noconfirm toy-engine");
    assert!(matches!(
        look(&pacman.bench, &step).outlook,
        Outlook::Install { .. }
    ));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_version_is_had_exactly_or_not_at_all() {
    needs_root();
    let mut pacman = Pacman::new();
    allow(&mut pacman.bench);
    // Before any list was fetched nobody can tell; then it is told before anything is installed.
    let other = install(json!({"version": "1.1-1"}));
    let error = go(&pacman.bench, &other).await.unwrap_err();
    assert_eq!(
        words(&error),
        "step `get` cannot be done: package `toy-engine` is asked for in version 1.1-1, and \
         repository `toys` offers 1.2-1"
    );
    assert_eq!(pacman.changes(), ["-Sy --noconfirm"]);
    assert!(!pacman.program().exists());
    let outlook = look(&pacman.bench, &other).outlook;
    assert!(
        matches!(&outlook, Outlook::Unsupported { why } if why.contains("offers 1.2-1")),
        "{outlook:?}"
    );
    let artifact = go(&pacman.bench, &install(json!({"version": "1.2-1"})))
        .await
        .unwrap();
    assert_eq!(artifact.labels["version"], "1.2-1");

    // An older one that is installed is replaced by exactly the one asked for.
    pacman.release("toy-engine", "1.10-1", "toy");
    pacman.type_in("-Syy");
    let newer = install(json!({"version": "1.10-1"}));
    assert_eq!(
        look(&pacman.bench, &newer).outlook,
        Outlook::Install {
            tools: vec!["toy-engine 1.10-1 (here: 1.2-1)".to_owned()],
            packages: vec!["toy-engine".to_owned()],
            allowed: true
        }
    );
    let artifact = go(&pacman.bench, &newer).await.unwrap();
    assert_eq!(artifact.labels["version"], "1.10-1");

    // A newer one is never replaced by an older one, though the repository has it again.
    pacman.release("toy-engine", "1.2-1", "toy");
    shell(
        pacman.bench.home.path(),
        "cd repo && repo-remove -q toys.db.tar.gz toy-engine && repo-add -q toys.db.tar.gz toy-engine-1.2-1-any.pkg.tar.gz",
    );
    pacman.type_in("-Syy");
    let before = pacman.changes();
    let error = go(&pacman.bench, &install(json!({"version": "1.2-1"})))
        .await
        .unwrap_err();
    assert!(
        words(&error).contains(
            "is installed in version 1.10-1, not older version 1.2-1: it is not downgraded"
        ),
        "{}",
        words(&error)
    );
    let hints = error.hints();
    assert_eq!(hints[1].command.as_deref(), Some("pacman -S toy-engine"));
    assert!(hints[0].text.contains("version: \"1.10-1\""), "{hints:?}");
    assert_eq!(pacman.changes(), before);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_there_or_carries_something_else_is_named() {
    needs_root();
    let mut pacman = Pacman::new();
    allow(&mut pacman.bench);
    pacman.type_in("-Syy");
    let missing = install(json!({"packages": {"pacman": ["no-such-thing"]}}));
    let error = go(&pacman.bench, &missing).await.unwrap_err();
    assert!(
        words(&error).ends_with("no repository of this system has package `no-such-thing`"),
        "{}",
        words(&error)
    );
    let elsewhere = install(json!({"repository": "elsewhere"}));
    go(&pacman.bench, &elsewhere).await.unwrap_err();
    // The name of something that another package merely provides is not that package.
    pacman.type_in("-S --noconfirm toy-engine");
    let provided = install(json!({"packages": {"pacman": ["something"]}}));
    assert_ne!(look(&pacman.bench, &provided).outlook, Outlook::Cached);

    let other = install(json!({"program": "llama-server"}));
    let error = go(&pacman.bench, &other).await.unwrap_err();
    assert_eq!(
        words(&error),
        "step `get` cannot be done: package `toy-engine` 1.2-1 has no program `llama-server`"
    );
    assert_eq!(error.details()[0].text, "toy");
}

#[tokio::test(flavor = "multi_thread")]
async fn packages_of_the_arch_user_repository_are_a_last_resort_with_leave_of_their_own() {
    needs_root();
    let mut pacman = Pacman::new();
    allow(&mut pacman.bench);
    pacman.type_in("-Syy");
    let both =
        |own: &str| install(json!({"packages": {"pacman": [own], "aur": ["toy-engine-git"]}}));
    assert!(matches!(
        look(&pacman.bench, &both("toy-engine")).outlook,
        Outlook::Install { packages, .. } if packages == ["toy-engine"]
    ));
    let outlook = look(&pacman.bench, &both("no-such-thing")).outlook;
    assert!(
        matches!(&outlook, Outlook::Refused { why } if why.contains("allow_aur")),
        "{outlook:?}"
    );
    let policy = Arc::make_mut(&mut pacman.bench.context.policy);
    policy.allow_aur = Setting::default_of(true);
    let error = go(&pacman.bench, &both("no-such-thing")).await.unwrap_err();
    assert!(
        error
            .details()
            .iter()
            .any(|detail| detail.text.contains("never built as root")),
        "{:?}",
        error.details()
    );
    let mut pinned = both("no-such-thing");
    let Act::InstallPackages(act) = &mut pinned.act else {
        unreachable!()
    };
    act.version = Some("1".to_owned());
    let error = go(&pacman.bench, &pinned).await.unwrap_err();
    assert!(
        words(&error).contains("builds the newest only"),
        "{}",
        words(&error)
    );
}

/// A bench with scripts in place of a package manager and its database, which note their arguments.
fn stand_in(family: &str, scripts: &[(&str, &str)]) -> Bench {
    let mut bench = bench(&[]);
    let home = bench.home.path().to_owned();
    for (name, text) in scripts {
        let text = format!("cd {}; echo \"{name} $*\" >> calls\n{text}", home.display());
        script(&home.join(name), &text);
    }
    fs::create_dir_all(home.join("usr/bin")).unwrap();
    script(&home.join("usr/bin/toy"), "true");
    manager(&mut bench, family, home.join(scripts[0].0));
    allow(&mut bench);
    bench
}

fn calls(bench: &Bench) -> Vec<String> {
    let calls = fs::read_to_string(bench.home.path().join("calls")).unwrap_or_default();
    calls.lines().map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn apt_is_asked_for_an_exact_version_after_the_end_of_options() {
    needs_root();
    let query = "case $1 in -W) [ -e done ] && printf 'toy-engine\\t1:2-3\\tinstalled\\n';; \
                 -L) [ -e done ] && echo $PWD/usr/bin/toy;; esac";
    let bench = stand_in("apt", &[("apt-get", "touch done"), ("dpkg-query", query)]);
    let artifact = go(&bench, &install(json!({"version": "1:2-3"})))
        .await
        .unwrap();
    assert_eq!(artifact.labels["version"], "1:2-3");
    let installs: Vec<String> = calls(&bench)
        .into_iter()
        .filter(|call| call.starts_with("apt-get"))
        .collect();
    assert_eq!(
        installs,
        [
            "apt-get -y --no-install-recommends -o DPkg::Lock::Timeout=300 install -- toy-engine=1:2-3"
        ]
    );
    // dpkg itself compares versions.
    let error = go(&bench, &install(json!({"version": "1:2-2"})))
        .await
        .unwrap_err();
    assert_eq!(
        error.hints()[1].command.as_deref(),
        Some("apt-get install --allow-downgrades toy-engine=1:2-2")
    );
    let both = install(json!({"version": "1:2-3", "repository": "sid"}));
    assert!(words(&go(&bench, &both).await.unwrap_err()).contains("not both"));
}

#[tokio::test(flavor = "multi_thread")]
async fn dnf_is_asked_for_an_exact_version_and_rpm_for_what_is_there() {
    needs_root();
    let rpm = "case $1$2 in -q--qf) if [ -e done ]; then printf 'toy-engine\\t0:2-3.fc42\\n'; else echo \
               package toy-engine is not installed; exit 1; fi;; -q-l) [ -e done ] && echo $PWD/usr/bin/toy;; \
               --eval*) echo 1;; esac";
    let bench = stand_in("dnf", &[("dnf", "touch done"), ("rpm", rpm)]);
    let artifact = go(&bench, &install(json!({"version": "2-3.fc42"})))
        .await
        .unwrap();
    assert_eq!(artifact.labels["version"], "2-3.fc42");
    assert!(calls(&bench).contains(&"dnf -y install -- toy-engine-2-3.fc42".to_owned()));
    let error = go(&bench, &install(json!({"version": "2-2.fc42"})))
        .await
        .unwrap_err();
    let command = error.hints()[1].command.clone();
    assert_eq!(
        command.as_deref(),
        Some("dnf downgrade toy-engine-2-2.fc42")
    );
    let asked = "rpm --eval -- ";
    assert!(
        !calls(&bench).iter().any(|call| call.starts_with(asked)),
        "{:?}",
        calls(&bench)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn systems_without_a_known_manager_or_table_are_told_before_anything_is_done() {
    let bench = bench(&[]);
    let outlook = look(&bench, &install(json!({}))).outlook;
    assert!(
        matches!(&outlook, Outlook::Unsupported { why } if why.contains("no package manager")),
        "{outlook:?}"
    );
    let error = go(&bench, &install(json!({}))).await.unwrap_err();
    assert_eq!(error.exit(), Exit::Unavailable);
    let bench = stand_in("dnf", &[("dnf", ""), ("rpm", "")]);
    let elsewhere = install(json!({"packages": {"apt": ["toy"], "pacman": ["toy"]}}));
    let error = go(&bench, &elsewhere).await.unwrap_err();
    assert!(
        words(&error).contains("no package of this system (dnf)"),
        "{}",
        words(&error)
    );
    assert_eq!(error.details()[0].text, "apt, pacman");
    for bad in [
        json!({"packages": {"dnf": ["./toy.rpm"]}}),
        json!({"version": "1'..os.exit()"}),
        json!({"repository": "-y"}),
    ] {
        let step = install(bad);
        assert!(expected_of(&bench.context, &step, &Artifacts::new()).is_err());
        assert!(matches!(
            go(&bench, &step).await,
            Err(ActError::Plan { .. })
        ));
    }
    assert_eq!(calls(&bench), Vec::<String>::new());
}
