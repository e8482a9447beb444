//! Gold that only scores changes no table of a model, with any of its options about gold.

use labelmill::model::MODELS;

use crate::network_job::{crowd, job, pipeline};
use crate::support::{read_table, trains_network};

const TABLES: [&str; 6] =
    ["labels", "posteriors", "annotators", "confusion_matrices", "predictions", "trace"];

/// Each kind of network, with fine-tuning, with gold that is held back, and with a start at its matrices.
#[test]
fn holdout_gold_changes_no_table_of_a_network_with_options_about_gold() {
    let truth = crowd().truth;
    for model in MODELS.iter().filter(|model| trains_network(model)) {
        let fixed = (model.fixed_keys)();
        let options = [
            ("fine_tune", "fine_tune = 2"),
            ("hold_back_gold", "fine_tune = 2\nhold_back_gold = true"),
            ("init_from_gold", "init_from_gold = true"),
        ];
        for (key, option) in options.into_iter().filter(|(key, _)| !fixed.contains(key)) {
            let missing = if model.kind == "tcls" { "\nmax_missing = 1.0" } else { "" };
            let kind = format!("kind = '{}'{missing}\n{option}", model.kind);
            let text = pipeline(&kind).replace("train.epochs = 20", "train.epochs = 1");
            let text = text.replace("[model]", "gold = '{dir}gold.csv'\n[model]");
            let job = job();
            let [right, wrong] = [0, 1].map(|offset| {
                let row = |(i, class): (usize, &u32)| match i {
                    0..40 => format!("{i},{class},train\n"),
                    40..80 => format!("{i},{},holdout\n", (class + offset) % 3),
                    _ => String::new(),
                };
                let rows: String = truth.iter().enumerate().map(row).collect();
                job.write("gold.csv", &format!("instance_id,class,role\n{rows}"));
                let run = job.run(&text);
                TABLES.map(|table| {
                    let mut rows = read_table(&run, table);
                    rows.iter_mut().for_each(|row| drop(row.remove("seconds")));
                    rows
                })
            });
            for ((right, wrong), table) in right.iter().zip(&wrong).zip(TABLES) {
                assert_eq!(right, wrong, "{} with {key}: {table}", model.kind);
            }
        }
    }
}
