//! Parses and writes crowds as text: `10*symmetric(0.8), 10*pair(0.45), imitative(a00)`.
//!
//! ```text
//! crowd      group, group, ...       annotators are numbered on through the groups: a00, a01, ...
//! group      4*type(...) or type(...)
//! arguments  a probability first, then classes (7 8 9), links (3>5 one way, 3-5 both ways) or an annotator (a00)
//! ```

use super::annotators::{AnnotatorType, ClassShift, Dependence, Link};
use crate::error::{Error, Result, did_you_mean};

/// Every type: its syntax, and its behaviour.
pub const TYPES: &[(&str, &str)] = &[
    ("symmetric(EPS)", "wrong with chance EPS, all wrong classes alike"),
    ("pair(EPS [K>L ...])", "wrong with chance EPS, then the class after, or L for K"),
    ("class-wise(K ...)", "right on these classes, at random on the others"),
    ("hammer-spammer(P)", "each answer right with chance P, else at random"),
    ("hammer-or-spammer(P)", "always right with chance P, else always at random"),
    ("class-wise-hammer-spammer(G)", "for each class, always right with chance G, else at random"),
    ("pairwise-flipper(P)", "right with chance P, else a target drawn for each class"),
    ("neighbour-confuser(A)", "right with chance A, else the class before or after"),
    (
        "similar-pair(A [K-L ...])",
        "right with chance A, else the partner; pairs are drawn if not given",
    ),
    (
        "confuser(A K>L ...)",
        "right with chance A on these classes, else L for K; right on the others",
    ),
    (
        "adversarial(A [N | K>L ...])",
        "right with chance A, else the class N places on, or L for K, or half the way round",
    ),
    ("right", "always right"),
    ("wrong", "always wrong, all wrong classes alike"),
    ("random", "any class, whatever is true"),
    ("constant(K)", "always class K"),
    ("naive-majority", "always the most frequent class"),
    ("imitative(ID)", "copies annotator ID, who comes before"),
    ("supportive(ID)", "right where annotator ID is right, else any wrong class"),
    ("opposite(ID)", "right where annotator ID is wrong, else any wrong class"),
];

/// One group: the number of annotators, and their type.
pub type Group = (usize, AnnotatorType);

/// Parses a crowd.
///
/// # Errors
/// When a group cannot be parsed; for an unknown type the nearest is suggested.
pub fn crowd(text: &str) -> Result<Vec<Group>> {
    let mut depth = 0;
    let groups = text.split(|c| {
        depth += i32::from(c == '(') - i32::from(c == ')');
        c == ',' && depth == 0
    });
    groups.map(|group| one_group(group.trim())).collect()
}

fn one_group(text: &str) -> Result<Group> {
    let (count, word) = match text.split_once('*') {
        Some((count, word)) => (count.trim().parse().ok().filter(|n| *n > 0), word.trim()),
        None => (Some(1), text),
    };
    let count = count.ok_or_else(|| {
        Error::spec("a group needs a number of annotators")
            .found(format!("`{text}`"))
            .help("write it before the type, such as 10*symmetric(0.8)")
    })?;
    Ok((count, kind(word)?))
}

/// Parses one type.
///
/// # Errors
/// As [`crowd`].
pub fn kind(text: &str) -> Result<AnnotatorType> {
    let (name, inside) = match text.split_once('(') {
        Some((name, rest)) => (name.trim(), rest.trim_end().strip_suffix(')')),
        None => (text, Some("")),
    };
    let mut arguments = TypeArguments { text, name, rest: Vec::new() };
    let inside = inside.ok_or_else(|| arguments.wrong("there is no closing bracket"))?;
    arguments.rest = inside.split([' ', ',']).filter(|word| !word.is_empty()).rev().collect();
    let kind = match name {
        "symmetric" => AnnotatorType::Symmetric(arguments.chance()?),
        "pair" => AnnotatorType::Pair(arguments.chance()?, arguments.links()?),
        "class-wise" => AnnotatorType::ClassWise(arguments.classes()?),
        "hammer-spammer" => AnnotatorType::HammerSpammer(arguments.chance()?),
        "hammer-or-spammer" => AnnotatorType::HammerOrSpammer(arguments.chance()?),
        "class-wise-hammer-spammer" => AnnotatorType::ClassWiseHammerSpammer(arguments.chance()?),
        "pairwise-flipper" => AnnotatorType::PairwiseFlipper(arguments.chance()?),
        "neighbour-confuser" => AnnotatorType::Neighbour(arguments.chance()?),
        "similar-pair" => AnnotatorType::SimilarPair(arguments.chance()?, arguments.links()?),
        "confuser" => AnnotatorType::Confuser(arguments.chance()?, arguments.some_links()?),
        "adversarial" => AnnotatorType::Adversarial(arguments.chance()?, arguments.names()?),
        "right" => AnnotatorType::Right,
        "wrong" => AnnotatorType::Wrong,
        "random" => AnnotatorType::Random,
        "constant" => AnnotatorType::Constant(arguments.one("a class", number)?),
        "naive-majority" => AnnotatorType::NaiveMajority,
        "imitative" => AnnotatorType::Follows(Dependence::Imitative, arguments.annotator()?),
        "supportive" => AnnotatorType::Follows(Dependence::Supportive, arguments.annotator()?),
        "opposite" => AnnotatorType::Follows(Dependence::Opposite, arguments.annotator()?),
        _ => return Err(unknown(text, name)),
    };
    match arguments.rest.pop() {
        Some(word) => Err(arguments.wrong(format!("`{word}` is one word too many"))),
        None => Ok(kind),
    }
}

/// Parses a list of links, such as `3-5 1-9`.
///
/// # Errors
/// When a word is no link.
pub fn links(text: &str) -> Result<Vec<Link>> {
    let rest = text.split([' ', ',']).filter(|word| !word.is_empty()).rev().collect();
    TypeArguments { text, name: "links", rest }.links()
}

fn unknown(text: &str, name: &str) -> Error {
    let names = TYPES.iter().map(|(usage, _)| usage.split('(').next().unwrap_or_default());
    let help = did_you_mean(name, names, || "`labelmill simulate --list` shows them".to_owned());
    Error::spec(format!("there is no annotator type `{name}`")).at(format!("`{text}`")).help(help)
}

fn number(word: &str) -> Option<usize> {
    word.parse().ok()
}

const A_LINK: &str = "a link such as 3>5 or 3-5";

/// The arguments between the brackets, in reverse order.
struct TypeArguments<'a> {
    text: &'a str,
    name: &'a str,
    rest: Vec<&'a str>,
}

impl TypeArguments<'_> {
    fn wrong(&self, what: impl Into<String>) -> Error {
        let usage = TYPES.iter().find(|(usage, _)| usage.split('(').next() == Some(self.name));
        let usage = usage.map_or("3-5 1-9", |(usage, _)| usage);
        Error::spec(what).at(format!("`{}`", self.text)).help(format!("write {usage}"))
    }

    fn one<T>(&mut self, what: &str, read: impl Fn(&str) -> Option<T>) -> Result<T> {
        let word = self.rest.pop().ok_or_else(|| self.wrong(format!("{what} is missing")))?;
        read(word).ok_or_else(|| self.wrong(format!("`{word}` is not {what}")))
    }

    fn chance(&mut self) -> Result<f64> {
        let chance = |word: &str| word.parse().ok().filter(|p| (0.0..=1.0).contains(p));
        self.one("a chance from 0 to 1", chance)
    }

    fn classes(&mut self) -> Result<Vec<usize>> {
        let mut classes = Vec::new();
        while !self.rest.is_empty() {
            classes.push(self.one("a class", number)?);
        }
        Ok(classes)
    }

    fn annotator(&mut self) -> Result<usize> {
        self.one("an annotator such as a00", |word| number(word.strip_prefix('a')?))
    }

    fn links(&mut self) -> Result<Vec<Link>> {
        let mut links = Vec::new();
        while !self.rest.is_empty() {
            let (both, from, to) = self.one(A_LINK, |word| {
                let (from, to) = word.split_once(['>', '-'])?;
                Some((word.contains('-'), number(from)?, number(to)?))
            })?;
            if from == to {
                return Err(self.wrong(format!("class {from} is linked to itself")));
            }
            links.push((from, to));
            links.extend(both.then_some((to, from)));
        }
        let from = |n: usize| links[n].0;
        match (0..links.len()).find(|n| (0..*n).any(|before| from(before) == from(*n))) {
            Some(n) => Err(self.wrong(format!("class {} is linked twice", from(n)))),
            None => Ok(links),
        }
    }

    fn some_links(&mut self) -> Result<Vec<Link>> {
        if self.rest.is_empty() {
            return Err(self.wrong(format!("{A_LINK} is missing")));
        }
        self.links()
    }

    fn names(&mut self) -> Result<ClassShift> {
        Ok(match self.rest.last() {
            None => ClassShift::HalfOfClasses,
            Some(word) if word.contains(['>', '-']) => ClassShift::Permutation(self.links()?),
            Some(_) => ClassShift::By(self.one("a number of places, or a link", number)?),
        })
    }
}

/// The id of an annotator in a crowd of `of` annotators: as many digits as the last one needs, at least two.
#[must_use]
pub fn annotator_id(annotator: usize, of: usize) -> String {
    let digits = of.saturating_sub(1).to_string().len().max(2);
    format!("a{annotator:0digits$}")
}

impl AnnotatorType {
    /// The type as text, in a crowd of `annotators` annotators: their number decides the digits of an id.
    #[must_use]
    pub fn text(&self, annotators: usize) -> String {
        let join = |items: Vec<String>| items.iter().flat_map(|i| [" ", i]).collect::<String>();
        let linked = |links: &[Link]| join(links.iter().map(|(k, l)| format!("{k}>{l}")).collect());
        // Rounded, so that a probability such as 1 - 0.7 is written as 0.3.
        let short = |p: &f64| (p * 1e9).round() / 1e9;
        match self {
            Self::Symmetric(p) => format!("symmetric({})", short(p)),
            Self::Pair(p, links) => format!("pair({}{})", short(p), linked(links)),
            Self::ClassWise(known) => {
                let known = join(known.iter().map(ToString::to_string).collect());
                format!("class-wise({})", known.trim_start())
            }
            Self::HammerSpammer(p) => format!("hammer-spammer({})", short(p)),
            Self::HammerOrSpammer(p) => format!("hammer-or-spammer({})", short(p)),
            Self::ClassWiseHammerSpammer(p) => format!("class-wise-hammer-spammer({})", short(p)),
            Self::PairwiseFlipper(p) => format!("pairwise-flipper({})", short(p)),
            Self::Neighbour(p) => format!("neighbour-confuser({})", short(p)),
            Self::SimilarPair(p, links) => format!("similar-pair({}{})", short(p), linked(links)),
            Self::Confuser(p, links) => format!("confuser({}{})", short(p), linked(links)),
            Self::Adversarial(p, names) => {
                let names = match names {
                    ClassShift::HalfOfClasses => String::new(),
                    ClassShift::By(locations) => format!(" {locations}"),
                    ClassShift::Permutation(links) => linked(links),
                };
                format!("adversarial({}{names})", short(p))
            }
            Self::Right => "right".to_owned(),
            Self::Wrong => "wrong".to_owned(),
            Self::Random => "random".to_owned(),
            Self::Constant(class) => format!("constant({class})"),
            Self::NaiveMajority => "naive-majority".to_owned(),
            Self::Follows(manner, of) => {
                let word = match manner {
                    Dependence::Imitative => "imitative",
                    Dependence::Supportive => "supportive",
                    Dependence::Opposite => "opposite",
                };
                format!("{word}({})", annotator_id(*of, annotators))
            }
        }
    }
}
