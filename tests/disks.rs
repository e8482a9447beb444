//! Unusual disks: folders on other disks, circles of links, no space left.

use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use crate::job::{Job, assert_says};
use crate::support::{committed, files_of, labelmill, run_fails, stderr, stdout};
use crate::writers_place::WritersPlace;

const CROWD: &str = "source.annotations = [['i', 'a', 'x'], ['j', 'a', 'x'], ['j', 'b', 'y']]
    model.kind = 'majority_vote'\n";

#[test]
fn runs_may_lie_on_another_disk_than_the_link_to_the_newest() {
    let job = Job::new();
    let disk = |path: &Path| std::fs::metadata(path).unwrap().dev();
    let locations = [std::env::temp_dir(), "/dev/shm".into()];
    let mut folders = locations.iter().filter_map(|location| tempfile::tempdir_in(location).ok());
    let Some(other) = folders.find(|folder| disk(folder.path()) != disk(&job.path(""))) else {
        return eprintln!("SKIPPED: there is no other disk");
    };
    std::fs::create_dir_all(job.path("out")).unwrap();
    symlink(other.path(), job.path("out/runs")).unwrap();
    // A link that a killed process left behind.
    symlink("latest/_latest.json", job.path("out/_latest")).unwrap();
    for (id, seed) in [("old", "seed=1"), ("new", "seed=2")] {
        job.ends(CROWD, &["--set", &format!("sink.run_id={id}"), "--set", seed], 0);
        let files = files_of(&job.path("out/runs").join(id)).canonicalize().unwrap();
        assert_eq!(job.path("out/latest").canonicalize().unwrap(), files);
        assert!(std::fs::symlink_metadata(job.path("out/_latest")).is_err(), "litter");
    }
}

#[test]
fn a_sink_whose_folder_cannot_be_created_is_no_fault_of_the_data() {
    let job = Job::new();
    let pipeline = job.write("pipeline.toml", CROWD);
    job.write("file", "mine");
    let ends = |sink: &str, code: i32| {
        run_fails(&["run", &pipeline, "--set", &format!("sink.url={sink}")], code)
    };
    // A file in the way of the folder is an error of the spec; a disk that refuses may be tried again.
    let error = ends(&job.url("file/out"), 2);
    assert_says(&error, &["a folder is needed here", &job.url("file"), "found: a file"]);
    if !Path::new("/proc/self").exists() {
        return eprintln!("SKIPPED: there is no /proc");
    }
    let error = ends("/proc/out", 5);
    assert_says(&error, &["/proc/out", "its folder cannot be created", "sink.url", "help: check"]);
}

#[test]
fn a_link_on_its_way_that_a_dead_writer_left_goes_with_its_lease() {
    let location = WritersPlace::new(None, [40, 30], 3);
    let killed = |round: usize| {
        let mut child = location.spawn(3 * round, &[]);
        let run = location.out().join("runs").join(WritersPlace::id(3 * round));
        while !run.join("manifest.json").exists() && child.try_wait().unwrap().is_none() {
            std::hint::spin_loop();
        }
        let _ = child.kill();
        child.wait().unwrap();
        count_leases(&location) > 0 && committed(&run).is_some()
    };
    let round = (1..50).find(|round| killed(*round)).expect("one dies after its commit");
    let run = location.out().join("runs").join(WritersPlace::id(3 * round));
    let lease =
        std::fs::read_dir(location.out().join("_leases")).unwrap().map(|e| e.unwrap().path());
    let lease = lease.filter(|path| path.extension().unwrap() == "json").last().unwrap();
    let content = std::fs::read(&lease).unwrap();
    let again = || {
        let url = |name: String| location.folder.join(name).display().to_string();
        let (input, output) = (url(format!("in-{}", 3 * round % 2)), url("out".to_owned()));
        let id = format!("sink.run_id={}", WritersPlace::id(3 * round));
        let locations = ["--annotations", &input, "--output", &output];
        let model = ["--model", "dawid_skene", "--set", "model.stop.max_iter=3", "--set", &id];
        let done = labelmill().arg("aggregate").args(locations).args(model).output().unwrap();
        assert_says(&stderr(&done), &["nothing to do"]);
    };
    again();
    // As if the writer had died with a link staged as `_latest`, after `latest` had moved.
    std::fs::write(&lease, content).unwrap();
    let target = Path::new("runs")
        .join(WritersPlace::id(3 * round))
        .join(files_of(&run).file_name().unwrap());
    symlink(target, location.out().join("_latest")).unwrap();
    again();
    assert_eq!(count_leases(&location), 0);
    location.assert_clean();
}

fn count_leases(location: &WritersPlace) -> usize {
    let names = std::fs::read_dir(location.out().join("_leases")).unwrap();
    names.filter(|entry| entry.as_ref().unwrap().path().extension().unwrap() == "json").count()
}

#[test]
fn unreadable_folders_and_link_cycles_fail_no_job() {
    let job = Job::new();
    let named = |id: &str, seed: u32| {
        let set = [format!("sink.run_id={id}"), format!("seed={seed}"), "name=mine".to_owned()];
        set.map(|set| ["--set".to_owned(), set]).concat()
    };
    let run = |id: &str, seed: u32, more: &[&str]| {
        let named = named(id, seed);
        let arguments: Vec<&str> = named.iter().map(String::as_str).chain(more.to_vec()).collect();
        job.ends(CROWD, &arguments, 0)
    };
    run("old", 1, &[]);
    for folder in ["out/runs/theirs", "out/runs/closed", "out/runs/old/notes", "out/_leases/notes"]
    {
        std::fs::create_dir_all(job.path(folder)).unwrap();
        symlink(job.path(folder), job.path(folder).join("circle")).unwrap();
    }
    symlink("itself", job.path("out/runs/itself")).unwrap();
    symlink("nowhere", job.path("out/runs/broken")).unwrap();
    let closed = |mode: u32| {
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(job.path("out/runs/closed"), mode).unwrap();
    };
    closed(0o000);
    let printed = run("new", 2, &["--set", "sink.keep_runs=1"]);
    assert!(!printed.contains("could not be collected"), "{printed}");
    assert_eq!(committed(&job.path("out/runs/old")), None, "it is collected");
    std::fs::create_dir_all(job.path("out/runs/new/notes")).unwrap();
    symlink(job.path("out/runs/new"), job.path("out/runs/new/notes/circle")).unwrap();
    // The next job restores the pointer, and the run can be read.
    std::fs::remove_file(job.path("out/latest.json")).unwrap();
    let query = ["sql", "--json", "--run", &job.url("out"), "-c", "select count(*) n from labels"];
    let refused = labelmill().args(query).output().unwrap();
    assert_says(&stderr(&refused), &["latest.json is missing"]);
    assert_says(&run("new", 2, &[]), &["nothing to do"]);
    let read = labelmill().args(query).output().unwrap();
    assert_eq!(stdout(&read).trim(), "{\"n\":2}", "{}", stderr(&read));
    closed(0o700);
}

#[test]
fn a_run_s_folder_that_was_there_before_stays_and_one_that_was_made_goes() {
    for was_there in [true, false] {
        let job = Job::new();
        if was_there {
            std::fs::create_dir_all(job.path("out/runs/mine")).unwrap();
        }
        let broken = ["--set", "sink.run_id=mine", "--set", "gate.max_tied=0"];
        job.ends(CROWD, &broken, 6);
        assert_eq!(job.path("out/runs/mine").exists(), was_there);
        assert_eq!(job.path("out").exists(), was_there, "not even the folder of all runs");
        assert!(!job.path("out/_leases").exists());
    }
}

#[test]
fn what_a_dead_writer_left_makes_room_on_a_full_disk() {
    let location = WritersPlace::new(None, [4_000, 30], 55);
    let is_torn = (0..50).any(|n| {
        let mut child = location.spawn(6 * n, &[]);
        while location.unfinished().is_empty() && child.try_wait().unwrap().is_none() {
            std::hint::spin_loop();
        }
        let _ = child.kill();
        child.wait().unwrap();
        !location.unfinished().is_empty()
    });
    assert!(is_torn, "no kill came while tables were written");
    let input = location.folder.join("in-1").display().to_string();
    let output = location.out().display().to_string();
    let model = ["--model", "majority_vote"];
    // With this limit no file may grow.
    let full = std::process::Command::new("sh")
        .args(["-c", "ulimit -f 0; exec \"$0\" \"$@\"", env!("CARGO_BIN_EXE_labelmill")])
        .args(["aggregate", "--annotations", &input, "--output", &output])
        .args(model)
        .output()
        .unwrap();
    assert_eq!(full.status.code(), Some(5), "{}", stderr(&full));
    assert_eq!(location.unfinished(), Vec::<PathBuf>::new());
    assert_eq!(count_leases(&location), 0);
    location.run(7, &[]);
    location.assert_clean();
}
