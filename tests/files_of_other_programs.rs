//! A sink leaves files of other programs as they are, and control files that a power loss cut short block no job.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde_json::Value;

use crate::job::{Job, assert_says};
use crate::support::{files_of, labelmill, manifest, read_table, run_fails, stderr, stdout};

const CROWD: &str = "source.annotations = [['i', 'a', 'x'], ['j', 'a', 'x'], ['j', 'b', 'y']]
    model.kind = 'majority_vote'\nsink.stale_after_seconds = 1\n";

/// Every file and folder below a folder, with the content of a file or the target of a link.
fn tree(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if entry.file_type().unwrap().is_symlink() {
            let target = std::fs::read_link(&path).unwrap();
            files.insert(path, target.display().to_string().into());
        } else if path.is_dir() {
            files.insert(path.clone(), Vec::new());
            files.extend(tree(&path));
        } else {
            files.insert(path.clone(), std::fs::read(&path).unwrap());
        }
    }
    files
}

/// Sets the time of a file or folder far back.
fn age(path: &Path) {
    let hour_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
    std::fs::File::open(path).unwrap().set_modified(hour_ago).unwrap();
}

#[test]
fn files_of_others_stay_whatever_their_names_and_however_old_they_are() {
    let job = Job::new();
    let foreign = [
        "runs/exp1/best.pt",
        "runs/loose.txt",
        "runs/exp2/_lease.json",
        "runs/exp2/labels/part-00000.parquet",
        ".latest-1234",
        "latest.json#1",
        "_leases/0123456789abcdef.json",
        "_leases/notes.txt",
        "checkpoints/state.bin",
    ];
    for name in foreign {
        age(Path::new(&job.write(&format!("out/{name}"), "{\"mine\": true}")));
    }
    for folder in ["out/runs/empty", "out/empty"] {
        std::fs::create_dir_all(job.path(folder)).unwrap();
        age(&job.path(folder));
    }
    let before = tree(&job.path("out"));
    for seed in 1..4 {
        let set =
            ["--set", &format!("seed={seed}"), "--set", "sink.keep_runs=1", "--set", "name=mine"];
        job.ends(CROWD, &set, 0);
    }
    let after = tree(&job.path("out"));
    for (path, content) in before {
        assert_eq!(after.get(&path), Some(&content), "{}", path.display());
    }
}

#[test]
fn what_is_in_the_way_is_an_error_and_stays() {
    let cases: [(&str, &str, &str); 13] = [
        ("latest", "mine", "where the link `latest` belongs"),
        ("latest/notes.txt", "mine", "where the link `latest` belongs"),
        ("_latest", "mine", "where the link `_latest` belongs"),
        ("_latest/notes.txt", "mine", "where the link `_latest` belongs"),
        ("latest.json", "{\"version\": 3}", "not a pointer of labelmill"),
        ("latest.json/notes.txt", "mine", "not a pointer of labelmill"),
        ("runs/mine/manifest.json", "{\"files\": []}", "not a manifest of labelmill"),
        ("runs/mine/manifest.json/notes.txt", "mine", "not a manifest of labelmill"),
        ("runs/mine", "mine", "a folder is needed here"),
        ("runs", "mine", "a folder is needed here"),
        ("_leases", "mine", "a folder is needed here"),
        ("_leases/latest.lock/notes.txt", "mine", "a file is needed here"),
        ("", "mine", "a folder is needed here"),
    ];
    for (name, content, says) in cases {
        let job = Job::new();
        job.write(format!("out/{name}").trim_end_matches('/'), content);
        let before = tree(&job.path("out"));
        for _ in 0..2 {
            let error = job.ends(CROWD, &["--set", "sink.run_id=mine"], 2);
            assert_says(&error, &[says, "leaves it alone", "another folder"]);
        }
        let after = tree(&job.path("out"));
        let runs = |tree: &BTreeMap<PathBuf, Vec<u8>>| {
            tree.keys().filter(|p| p.extension().is_some_and(|e| e == "parquet")).count()
        };
        assert_eq!(runs(&after), 0, "{name}: litter");
        for (path, content) in before {
            assert_eq!(after.get(&path), Some(&content), "{name}: {}", path.display());
        }
    }
}

#[test]
fn a_link_that_leads_elsewhere_is_in_the_way_too() {
    for name in ["latest", "latest.json", "_latest"] {
        let job = Job::new();
        job.write("theirs", "{}");
        for target in [Path::new("/tmp"), &job.path("theirs"), Path::new("nowhere")] {
            let link = job.path("out").join(name);
            std::fs::create_dir_all(job.path("out")).unwrap();
            std::os::unix::fs::symlink(target, &link).unwrap();
            let belongs = format!("where the link `{name}` belongs");
            assert_says(&job.ends(CROWD, &[], 2), &["a link that leads elsewhere", &belongs]);
            assert_eq!(std::fs::read_link(&link).unwrap(), target);
            std::fs::remove_file(&link).unwrap();
        }
    }
}

#[test]
fn a_link_that_leads_nowhere_is_no_folder_to_publish_to() {
    let job = Job::new();
    std::os::unix::fs::symlink(job.path("none"), job.path("out")).unwrap();
    assert_says(&job.ends(CROWD, &[], 2), &["a folder is needed here", "leads nowhere"]);
    assert!(!job.path("none").exists());
}

#[test]
fn a_pointer_that_was_lost_is_written_again_by_a_job_that_was_done_before() {
    type Damage = fn(&Job);
    let damages: [(&str, Damage); 4] = [
        ("latest.json deleted", |job| std::fs::remove_file(job.path("out/latest.json")).unwrap()),
        ("the link deleted", |job| std::fs::remove_file(job.path("out/latest")).unwrap()),
        ("emptied", |job| std::fs::write(job.path("out/latest.json"), "").unwrap()),
        ("emptied where the link leads", |job| {
            let target = job.path("out/latest").canonicalize().unwrap();
            std::fs::write(target.join("_latest.json"), "").unwrap();
        }),
    ];
    for (what, damage) in damages {
        let job = Job::new();
        job.ends(CROWD, &["--set", "sink.run_id=old"], 0);
        job.ends(CROWD, &["--set", "sink.run_id=new", "--set", "seed=2"], 0);
        damage(&job);
        let query = ["sql", "--run", &job.url("out"), "-c", "select 1"];
        let refused = labelmill().args(query).output().unwrap();
        assert_says(&stderr(&refused), &["latest.json is missing", "run the job again"]);
        // The pointer names the newest run, not the run of the job that restores it.
        let message = job.ends(CROWD, &["--set", "sink.run_id=old"], 0);
        assert_says(&message, &["nothing to do"]);
        let newest = files_of(&job.path("out/runs/new")).canonicalize().unwrap();
        assert_eq!(job.path("out/latest").canonicalize().unwrap(), newest, "{what}");
        assert!(labelmill().args(query).output().unwrap().status.success(), "{what}");
    }
}

#[test]
fn a_run_is_the_latest_though_the_clock_went_back() {
    let job = Job::new();
    job.ends(CROWD, &["--set", "sink.run_id=old"], 0);
    let pointer = job.path("out/latest.json");
    let mut latest: Value = serde_json::from_slice(&std::fs::read(&pointer).unwrap()).unwrap();
    latest["committed"] = "2999-01-01T00:00:00.000000000Z".into();
    std::fs::write(&pointer, latest.to_string()).unwrap();
    job.ends(CROWD, &["--set", "sink.run_id=new", "--set", "seed=2"], 0);
    let newest = files_of(&job.path("out/runs/new")).canonicalize().unwrap();
    assert_eq!(job.path("out/latest").canonicalize().unwrap(), newest);
}

#[test]
fn a_full_disk_leaves_nothing_behind() {
    let job = Job::new();
    let spec = job.write("pipeline.toml", &format!("{CROWD}sink.url = '{}'", job.url("out")));
    // Every write to a file fails from its first byte on.
    let limited = "ulimit -f 0; exec \"$0\" run \"$1\"";
    let output = std::process::Command::new("sh")
        .args(["-c", limited, env!("CARGO_BIN_EXE_labelmill"), &spec])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(5), "{}", stderr(&output));
    let left: Vec<PathBuf> =
        tree(&job.path("out")).into_keys().filter(|path| path.is_file()).collect();
    assert_eq!(left, Vec::<PathBuf>::new());
}

#[test]
fn control_files_that_a_power_loss_emptied_block_no_job_and_are_named() {
    let job = Job::new();
    job.run(&(CROWD.to_owned() + "sink.run_id = 'mine'"));
    let named = ["out/runs/mine/manifest.json", "out/latest.json"];
    for cut in [0, 9] {
        for name in named {
            let whole = std::fs::read(job.path(name)).unwrap();
            std::fs::write(job.path(name), &whole[..cut]).unwrap();
        }
        let lease = job.write("out/_leases/00000000000000aa.json", "");
        age(Path::new(&lease));
        let message = job.ends(CROWD, &["--set", "sink.run_id=mine"], 0);
        assert_says(
            &message,
            &["cut short", "manifest.json", "latest.json", "00000000000000aa.json"],
        );
        assert!(!Path::new(&lease).exists(), "it names nothing");
        let run = job.path("out/runs/mine");
        assert_eq!(
            job.path("out/latest").canonicalize().unwrap(),
            files_of(&run).canonicalize().unwrap()
        );
        assert_eq!(read_table(&files_of(&run), "labels").len(), 2);
        // The next round damages the newest manifest: it takes the place of the one that was damaged here.
        std::fs::remove_file(run.join("manifest.json")).unwrap();
        let names = std::fs::read_dir(&run).unwrap().map(|e| e.unwrap().path());
        let newest = names.filter(|p| p.extension().is_some_and(|e| e == "json")).max().unwrap();
        std::fs::rename(newest, run.join("manifest.json")).unwrap();
    }
}

#[test]
fn a_run_whose_files_are_missing_or_cut_short_is_made_again_and_says_why() {
    for damage in [None, Some(7)] {
        let job = Job::new();
        let files = job.run(&(CROWD.to_owned() + "sink.run_id = 'mine'"));
        let part = files.join("posteriors/part-00000.parquet");
        match damage {
            None => std::fs::remove_file(&part).unwrap(),
            Some(length) => {
                let whole = std::fs::read(&part).unwrap();
                std::fs::write(&part, &whole[..length]).unwrap();
            }
        }
        let query = ["sql", "--run", &job.url("out"), "-c", "select * from labels"];
        let refused = labelmill().args(query).output().unwrap();
        assert_eq!(refused.status.code(), Some(3), "{}", stderr(&refused));
        assert_says(&stderr(&refused), &["files of the run are missing", "posteriors/part-00000"]);
        let again = ["the run is made again", "posteriors/part-00000.parquet"];
        let sink = format!("sink.url={}", job.url("out"));
        let explain = ["explain", &job.url("pipeline.toml"), "--set", &sink];
        let explained = labelmill().args(explain).output().unwrap();
        assert_says(
            &stdout(&explained),
            &["files of it are missing", "make it again", "posteriors/part-00000.parquet"],
        );
        let other = labelmill().args(explain).args(["--set", "seed=2"]).output().unwrap();
        assert_says(&stdout(&other), &["the run id belongs to another job"]);
        // The job says so before the fit, and so before the gate fails.
        let gated = ["--set", "sink.run_id=mine", "--set", "gate.max_tied=0"];
        assert_says(&job.ends(CROWD, &gated, 6), &again);
        let message = job.ends(CROWD, &["--set", "sink.run_id=mine"], 0);
        assert_says(&message, &again);
        let run = job.path("out/runs/mine");
        assert_ne!(files_of(&run), files);
        assert_eq!(read_table(&job.path("out/latest"), "posteriors").len(), 4);
        assert!(!files.exists(), "what was left of the first attempt is gone");
        assert_says(&job.ends(CROWD, &["--set", "sink.run_id=mine"], 0), &["nothing to do"]);
    }
}

#[test]
fn another_job_s_run_stays_though_a_file_of_it_is_missing() {
    let job = Job::new();
    let files = job.run(&(CROWD.to_owned() + "sink.run_id = 'mine'"));
    std::fs::remove_file(files.join("posteriors/part-00000.parquet")).unwrap();
    let before = tree(&job.path("out/runs"));
    let other = ["--set", "sink.run_id=mine", "--set", "seed=2"];
    assert_says(&job.ends(CROWD, &other, 2), &["the run id belongs to another job"]);
    assert_eq!(tree(&job.path("out/runs")), before);
    // With --force the new run gets a number behind its id.
    job.ends(CROWD, &[&other[..], &["--force"]].concat(), 0);
    assert!(job.path("out/runs/mine-2/manifest.json").exists());
    for (path, content) in before {
        assert_eq!(tree(&job.path("out/runs")).get(&path), Some(&content), "{}", path.display());
    }
}

#[test]
fn jobs_commit_while_another_process_keeps_the_lock() {
    let job = Job::new();
    job.ends(CROWD, &["--set", "sink.run_id=old"], 0);
    let lock = std::fs::File::open(job.path("out/_leases/latest.lock")).unwrap();
    lock.lock().unwrap();
    let message = job.ends(CROWD, &["--set", "sink.run_id=new", "--set", "seed=2"], 0);
    assert_says(&message, &["holds the lock", "latest.lock"]);
    let latest = || job.path("out/latest").canonicalize().unwrap();
    assert_eq!(latest(), files_of(&job.path("out/runs/old")).canonicalize().unwrap());
    // Another job that cannot take the lock either leaves the pointer to be moved later.
    job.ends(CROWD, &["--set", "sink.run_id=new", "--set", "seed=2"], 0);
    drop(lock);
    // The next job moves the pointer.
    job.ends(CROWD, &["--set", "sink.run_id=new", "--set", "seed=2"], 0);
    assert_eq!(latest(), files_of(&job.path("out/runs/new")).canonicalize().unwrap());
    assert_eq!(std::fs::read_dir(job.path("out/_leases")).unwrap().count(), 1, "the lock alone");
}

#[test]
fn runs_of_a_pipeline_without_a_name_are_not_collected() {
    let job = Job::new();
    let crowd = job.write("in.csv", "instance_id,annotator_id,label\ni,a,x\n");
    let out = job.url("out");
    let arguments = ["aggregate", "--annotations", &crowd, "--model", "majority_vote", "--output"];
    let output =
        labelmill().args(arguments).args([&*out, "--set", "sink.keep_runs=1"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert_says(&stderr(&output), &["sink.keep_runs", "give the pipeline a `name`"]);
    // Two teams may use the same file name, so the name of a file does not count as the name of a pipeline.
    let error = job.ends(CROWD, &["--set", "sink.keep_runs=1"], 2);
    assert_says(&error, &["sink.keep_runs", "give the pipeline a `name`"]);
    job.ends(CROWD, &["--set", "seed=1"], 0);
    for name in ["pipeline", "majority_vote"] {
        job.ends(CROWD, &["--set", "sink.keep_runs=1", "--set", &format!("name={name}")], 0);
    }
    assert_eq!(std::fs::read_dir(job.path("out/runs")).unwrap().count(), 2);
    let kept = std::fs::read_dir(job.path("out/runs")).unwrap();
    assert!(kept.into_iter().all(|run| files_of(&run.unwrap().path()).exists()));
}

#[test]
fn readers_see_the_files_that_the_manifest_lists_and_no_others() {
    let job = Job::new();
    let files = job.run(&(CROWD.to_owned() + "sink.run_id = 'mine'"));
    std::fs::copy(files.join("labels/part-00000.parquet"), files.join("labels/part-00001.parquet"))
        .unwrap();
    // A manifest.json of another tool next to the runs is not a run.
    job.write("out/manifest.json", "{\"files\": []}");
    for run in ["out", "out/latest", "out/runs/mine"] {
        let query =
            ["sql", "--json", "--run", &job.url(run), "-c", "select count(*) n from labels"];
        let output = labelmill().args(query).output().unwrap();
        let row: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(row["n"], 2, "{run}");
    }
    assert_eq!(
        manifest(&job.path("out/runs/mine"))["tables"]["labels"].as_array().unwrap().len(),
        1
    );
}

#[test]
fn thousands_of_questions_share_their_files() {
    let job = Job::new();
    let rows: Vec<String> = (0..3_000).map(|q| format!("i,a,x,q{q}\ni,b,y,q{q}\n")).collect();
    job.write("in.csv", &format!("instance_id,annotator_id,label,question\n{}", rows.concat()));
    let files = job.run("source.annotations = '{dir}in.csv'\nmodel.kind = 'dawid_skene'\n");
    let parts = tree(&files).into_keys().filter(|p| p.extension().is_some_and(|e| e == "parquet"));
    assert_eq!(parts.count(), labelmill::tables::TABLES.len());
    let labels = read_table(&files, "labels");
    assert_eq!(labels.len(), 3_000);
    assert_eq!(read_table(&files, "posteriors").len(), 6_000);
    let questions: std::collections::BTreeSet<_> =
        labels.iter().map(|row| row["question"].clone()).collect();
    assert_eq!(questions.len(), 3_000);
}

#[test]
fn what_lies_behind_a_link_in_place_of_an_attempts_folder_stays() {
    let job = Job::new();
    let named = ["--set", "name=mine", "--set", "sink.keep_runs=1", "--set"];
    job.ends(CROWD, &[&named[..], &["sink.run_id=old"]].concat(), 0);
    let (files, elsewhere) = (files_of(&job.path("out/runs/old")), job.path("elsewhere"));
    std::fs::rename(&files, &elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, &files).unwrap();
    let before = tree(&elsewhere);
    job.ends(CROWD, &[&named[..], &["sink.run_id=new", "--set", "seed=2"]].concat(), 0);
    assert_eq!(tree(&elsewhere), before);
}

/// Opening a pipe would wait for a writer for ever.
#[test]
fn pipes_in_place_of_control_files_are_in_the_way_or_nobody_s() {
    let pipe = |path: &Path| {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
    };
    for (name, says, code) in [
        ("latest.json", "not a pointer of labelmill", 2),
        ("runs/mine/manifest.json", "not a manifest of labelmill", 3),
        ("_leases/latest.lock", "a file is needed here", 3),
    ] {
        let job = Job::new();
        pipe(&job.path("out").join(name));
        let error = job.ends(CROWD, &["--set", "sink.run_id=mine"], 2);
        assert_says(&error, &[says, "leaves it alone"]);
        let url = job.url("out");
        run_fails(&["sql", "--run", &url, "-c", "SELECT 1"], code);
    }
    let job = Job::new();
    pipe(&job.path("out/runs/x/manifest.json"));
    pipe(&job.path("out/_leases/0123456789abcdef.json"));
    job.ends(CROWD, &["--set", "sink.keep_runs=1", "--set", "name=mine"], 0);
    job.ends(CROWD, &["--set", "sink.keep_runs=1", "--set", "name=mine", "--set", "seed=2"], 0);
}
