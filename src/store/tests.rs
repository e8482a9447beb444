use super::*;

#[test]
fn an_unknown_scheme_is_a_spec_error() {
    let url = parse_url("ftp://host/x").unwrap();
    assert_eq!(open(&url, &StoreSpec::default()).unwrap_err().exit_code(), 2);
}

#[test]
fn an_endpoint_that_is_none_is_refused_before_it_is_asked() {
    for endpoint in
        ["localhost:9000", "nonsense", "", "http://", "http://h:99999", " http://h", "ftp://h"]
    {
        let spec = StoreSpec { endpoint: Some(endpoint.to_owned()), ..StoreSpec::default() };
        let error = open(&parse_url("s3://b/x").unwrap(), &spec).unwrap_err();
        assert_eq!(error.exit_code(), 2, "{endpoint}");
        assert!(error.to_string().contains("not an endpoint"), "{error}");
    }
    let spec = StoreSpec { region: Some("us-east-1\n".to_owned()), ..StoreSpec::default() };
    let error = open(&parse_url("s3://b/x").unwrap(), &spec).unwrap_err();
    assert!(error.to_string().contains("store.region"), "{error}");
}

/// The pauses are drawn as `object_store` draws them.
#[test]
fn ten_retries_outlast_a_restart_of_the_store() {
    use rand::{Rng as _, SeedableRng as _};

    let spec = StoreSpec::default();
    let BackoffConfig { base, init_backoff, max_backoff } = spec.retries().backoff;
    let (first, most) = (init_backoff.as_secs_f64(), max_backoff.as_secs_f64());
    let mut rng = rand::rngs::StdRng::seed_from_u64(1);
    let mut total = || {
        let mut next = first;
        let pauses = (0..spec.max_retries).map(|_| {
            let drawn = rng.random_range(first..next * base).min(most);
            std::mem::replace(&mut next, drawn)
        });
        pauses.sum::<f64>()
    };
    let mut totals: Vec<f64> = (0..1000).map(|_| total()).collect();
    totals.sort_unstable_by(f64::total_cmp);
    assert!(totals[100] > 20.0 && totals[500] > 50.0, "{} and {} s", totals[100], totals[500]);
    assert!(totals[999] < spec.retry_seconds as f64, "{} s", totals[999]);
}

#[test]
fn an_endpoint_with_a_password_is_refused_and_not_repeated() {
    let endpoint = Some("http://me:hunter2@localhost:9000".to_owned());
    let spec = StoreSpec { endpoint, ..StoreSpec::default() };
    let error = open(&parse_url("s3://b/x").unwrap(), &spec).unwrap_err();
    assert_eq!(error.exit_code(), 2);
    assert!(error.to_string().contains("store.endpoint"), "{error}");
    assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
}

#[test]
fn pieces_that_no_store_takes_are_refused() {
    for (size, fits) in
        [("8MiB", true), ("5MiB", true), ("4MiB", false), ("8", false), ("many", false)]
    {
        let mut problems = Problems::default();
        StoreSpec { piece_size: size.to_owned(), ..StoreSpec::default() }.check("f", &mut problems);
        assert_eq!(problems.into_result().is_ok(), fits, "{size}");
    }
}
