//! Sets of real numbers as disjoint intervals in order: unions, complements, solutions of inequalities.

use std::cmp::Ordering;

use num_traits::{Signed, Zero};

use crate::math::inequality;
use crate::math::normal;
use crate::math::numeric;
use crate::math::parse::{infinity, is_membership};
use crate::math::tree::{Brackets, Expr, Relation, SetOperation};
use crate::math::value::{self, Rounding};

/// Sets of more pieces are not computed with.
const MAX_PIECES: usize = 16;

/// An end of an interval.
#[derive(Debug, Clone)]
enum End {
    Below,
    At(Expr),
    Above,
}

/// An interval, or a point whose ends are equal and closed.
#[derive(Debug, Clone)]
struct Piece {
    from: End,
    has_from: bool,
    to: End,
    has_to: bool,
}

/// Disjoint intervals in order, none touching the next.
#[derive(Debug, Clone)]
pub(crate) struct RealSet(Vec<Piece>);

impl RealSet {
    /// The set that a tree describes: an interval, points in braces, a union, an inequality in one variable.
    pub(crate) fn of(expr: &Expr) -> Option<Self> {
        match expr {
            Expr::List(Brackets::Brace, items) => {
                let points = items.iter().map(|item| {
                    value::is_value(item)
                        .then(|| Piece::between(End::At(item.clone()), true, End::At(item.clone()), true))
                });
                Self::settled(points.collect::<Option<Vec<_>>>()?)
            }
            Expr::List(brackets, items) => {
                let [from, to] = &items[..] else { return None };
                let (has_from, has_to) = match brackets {
                    Brackets::Paren => (false, false),
                    Brackets::Square => (true, true),
                    Brackets::ParenSquare => (false, true),
                    Brackets::SquareParen => (true, false),
                    _ => return None,
                };
                Self::settled(vec![Piece::between(End::of(from)?, has_from, End::of(to)?, has_to)])
            }
            Expr::SetOperation(operation, items) => {
                let mut sets = items.iter().map(Self::of);
                let first = sets.next()??;
                sets.try_fold(first, |left, right| left.combined(*operation, &right?))
            }
            Expr::NumberSet('R') => Self::settled(vec![Piece::between(End::Below, false, End::Above, false)]),
            Expr::Relation(items, relations) if is_membership(relations) => Self::of(items.get(1)?),
            Expr::Relation(items, relations) => Self::solutions(items, relations),
            _ => None,
        }
    }

    /// Where a chain of inequalities that are linear in one variable holds.
    fn solutions(items: &[Expr], relations: &[Relation]) -> Option<Self> {
        let mut names: Vec<&str> = items.iter().flat_map(Expr::symbols).collect();
        names.sort_unstable();
        names.dedup();
        let [name] = names[..] else { return None };
        let mut all = Self(vec![Piece::between(End::Below, false, End::Above, false)]);
        for (pair, relation) in items.windows(2).zip(relations) {
            let [left, right] = pair else { return None };
            let part = Self::solution(left, right, *relation, name)?;
            all = all.combined(SetOperation::Intersection, &part)?;
        }
        Some(all)
    }

    fn solution(left: &Expr, right: &Expr, relation: Relation, name: &str) -> Option<Self> {
        let is_alone = |expr: &Expr| matches!(expr, Expr::Symbol(symbol) if symbol == name);
        // The bound may be any number when the variable stands alone.
        let (bound, relation) = if is_alone(left) && right.symbols().is_empty() {
            (right.clone(), relation)
        } else if is_alone(right) && left.symbols().is_empty() {
            (left.clone(), relation.turned())
        } else {
            let linear = normal::quadratic(left, right, name)
                .filter(|[_, slope, square]| square.is_zero() && !slope.is_zero());
            let Some([offset, slope, _]) = linear else {
                return Self::of(&inequality::solved(left, right, relation, name)?);
            };
            let bound = Expr::Number { value: -(offset / &slope), is_decimal: false };
            (bound, if slope.is_negative() { relation.turned() } else { relation })
        };
        let at = End::of(&bound)?;
        let pieces = match relation {
            Relation::Less => vec![Piece::between(End::Below, false, at, false)],
            Relation::LessEqual => vec![Piece::between(End::Below, false, at, true)],
            Relation::Greater => vec![Piece::between(at, false, End::Above, false)],
            Relation::GreaterEqual => vec![Piece::between(at, true, End::Above, false)],
            Relation::NotEqual => vec![
                Piece::between(End::Below, false, at.clone(), false),
                Piece::between(at, false, End::Above, false),
            ],
            Relation::Equal | Relation::Near | Relation::In | Relation::Congruent => return None,
        };
        Self::settled(pieces)
    }

    /// The union of sets.
    fn union(sets: Vec<Self>) -> Option<Self> {
        Self::settled(sets.into_iter().flat_map(|set| set.0).collect())
    }

    /// What several conditions say together: their union, or where that is everything and says nothing, as of
    /// `x > -1 and x < 3`, what they have in common.
    pub(crate) fn of_conditions(conditions: &[Expr]) -> Option<Self> {
        let sets: Vec<Self> = conditions.iter().map(Self::of).collect::<Option<_>>()?;
        let union = Self::union(sets.clone())?;
        let is_all = matches!(&union.0[..], [Piece { from: End::Below, to: End::Above, .. }]);
        if !is_all {
            return Some(union);
        }
        sets.iter().try_fold(union, |common, set| common.combined(SetOperation::Intersection, set))
    }

    fn combined(&self, operation: SetOperation, other: &Self) -> Option<Self> {
        match operation {
            SetOperation::Union => Self::union(vec![self.clone(), other.clone()]),
            SetOperation::Intersection => {
                let mut pieces = Vec::new();
                for left in &self.0 {
                    for right in &other.0 {
                        pieces.push(left.common(right)?);
                    }
                }
                Self::settled(pieces)
            }
            SetOperation::Difference => self.combined(SetOperation::Intersection, &other.complement()),
        }
    }

    fn complement(&self) -> Self {
        let mut pieces = Vec::new();
        let (mut from, mut has_from) = (End::Below, false);
        for piece in &self.0 {
            pieces.push(Piece::between(from, has_from, piece.from.clone(), !piece.has_from));
            (from, has_from) = (piece.to.clone(), !piece.has_to);
        }
        pieces.push(Piece::between(from, has_from, End::Above, false));
        pieces.retain(|piece| {
            !matches!((&piece.from, &piece.to), (End::Below, End::Below) | (End::Above, End::Above))
        });
        Self(pieces)
    }

    /// Sorts the pieces, drops empty ones and joins those that touch.
    fn settled(pieces: Vec<Piece>) -> Option<Self> {
        let mut sorted: Vec<Piece> = Vec::new();
        for piece in pieces {
            if piece.is_empty()? {
                continue;
            }
            let mut at = 0;
            while let Some(other) = sorted.get(at) {
                let order = other.from.order(&piece.from)?;
                if order == Ordering::Greater || order == Ordering::Equal && piece.has_from && !other.has_from
                {
                    break;
                }
                at += 1;
            }
            sorted.insert(at, piece);
            if sorted.len() > MAX_PIECES {
                return None;
            }
        }
        let mut joined: Vec<Piece> = Vec::new();
        for piece in sorted {
            let Some(last) = joined.last_mut() else {
                joined.push(piece);
                continue;
            };
            let order = last.to.order(&piece.from)?;
            let touches =
                order == Ordering::Greater || order == Ordering::Equal && (last.has_to || piece.has_from);
            if !touches {
                joined.push(piece);
                continue;
            }
            match last.to.order(&piece.to)? {
                Ordering::Less => (last.to, last.has_to) = (piece.to, piece.has_to),
                Ordering::Equal => last.has_to |= piece.has_to,
                Ordering::Greater => {}
            }
        }
        Some(Self(joined))
    }

    /// Whether both are the same set, ends compared as values.
    pub(crate) fn is_same(&self, found: &Self, rounding: Rounding) -> bool {
        let same_end = |gold: &End, found: &End| match (gold, found) {
            (End::At(gold), End::At(found)) => value::equal(gold, found, rounding).is_some(),
            (End::Below, End::Below) | (End::Above, End::Above) => true,
            _ => false,
        };
        self.0.len() == found.0.len()
            && self.0.iter().zip(&found.0).all(|(gold, found)| {
                gold.has_from == found.has_from
                    && gold.has_to == found.has_to
                    && same_end(&gold.from, &found.from)
                    && same_end(&gold.to, &found.to)
            })
    }
}

impl Piece {
    fn between(from: End, has_from: bool, to: End, has_to: bool) -> Self {
        // Infinity is no element.
        let is_at = |end: &End| matches!(end, End::At(_));
        Self { has_from: has_from && is_at(&from), has_to: has_to && is_at(&to), from, to }
    }

    fn is_empty(&self) -> Option<bool> {
        Some(match self.from.order(&self.to)? {
            Ordering::Less => false,
            Ordering::Equal => !(self.has_from && self.has_to),
            Ordering::Greater => true,
        })
    }

    fn common(&self, other: &Self) -> Option<Self> {
        let (from, has_from) = match self.from.order(&other.from)? {
            Ordering::Less => (other.from.clone(), other.has_from),
            Ordering::Greater => (self.from.clone(), self.has_from),
            Ordering::Equal => (self.from.clone(), self.has_from && other.has_from),
        };
        let (to, has_to) = match self.to.order(&other.to)? {
            Ordering::Less => (self.to.clone(), self.has_to),
            Ordering::Greater => (other.to.clone(), other.has_to),
            Ordering::Equal => (self.to.clone(), self.has_to && other.has_to),
        };
        Some(Self::between(from, has_from, to, has_to))
    }
}

impl End {
    fn of(expr: &Expr) -> Option<Self> {
        Some(match infinity(expr) {
            Some(true) => Self::Above,
            Some(false) => Self::Below,
            None if value::is_value(expr) => Self::At(expr.clone()),
            None => return None,
        })
    }

    fn order(&self, other: &Self) -> Option<Ordering> {
        let rank = |end: &Self| match end {
            Self::Below => -1,
            Self::At(_) => 0,
            Self::Above => 1,
        };
        let (Self::At(left), Self::At(right)) = (self, other) else {
            return Some(rank(self).cmp(&rank(other)));
        };
        if left == right {
            return Some(Ordering::Equal);
        }
        if let (Some(left), Some(right)) = (normal::rational_value(left), normal::rational_value(right)) {
            return Some(left.cmp(&right));
        }
        // Values that evaluation cannot tell apart are equal, where exact arithmetic or 75 digits say so.
        numeric::order(left, right)
            .or_else(|| value::equal(left, right, Rounding { decimals: 30 }).map(|_| Ordering::Equal))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::math::numeral::Commas;
    use crate::math::parse::parse;

    fn set(text: &str) -> RealSet {
        let tree = parse(text, Commas::Thousands).unwrap_or_else(|| panic!("{text}"));
        RealSet::of(&tree).unwrap_or_else(|| panic!("{text}: {tree:?}"))
    }

    fn is_same(left: &str, right: &str) -> bool {
        set(left).is_same(&set(right), Rounding { decimals: 6 })
    }

    #[test]
    fn forms_of_one_set_are_the_same() {
        for (left, right) in [
            (r"[2,\infty) \cup (-\infty,-3]", r"(-\infty,-3] \cup [2,\infty)"),
            (r"\mathbb{R} \setminus \{1\}", r"(-\infty,1)\cup(1,\infty)"),
            (r"x \ne 1", r"(-\infty,1)\cup(1,\infty)"),
            (r"-2 \le x \le 7", "[-2,7]"),
            (r"x \in [-2,7]", r"7 \ge x \ge -2"),
            ("-x > -1", "x < 1"),
            ("2x+3 < 7", r"(-\infty, 2)"),
            (r"(0,1) \cup \{1\} \cup (1,2]", "(0,2]"),
            (r"[0,3] \cap [1,5]", "[1,3]"),
            (r"[0,3] \setminus (1,2)", r"[0,1]\cup[2,3]"),
            (r"x > \sqrt{2}", r"(\sqrt{2},\infty)"),
            (r"\{x \mid x > 0\}", r"(0,+\infty)"),
            ("]0,1]", "(0,1]"),
            ("|x| < 2", "(-2,2)"),
            ("3 <= |x-1|", r"(-\infty,-2]\cup[4,\infty)"),
            ("x^2 < 4", "(-2,2)"),
            ("-x^2+2 <= 0", r"(-\infty,-\sqrt{2}]\cup[\sqrt{2},\infty)"),
            ("x^2-2x+1 > 0", r"x \ne 1"),
            ("x^2+1 > 0", r"\mathbb{R}"),
        ] {
            assert!(is_same(left, right), "{left} {right}\n{:?}\n{:?}", set(left), set(right));
        }
    }

    #[test]
    fn ends_count() {
        for (left, right) in [("[0,1)", "[0,1]"), ("(0,1)", "(0,2)"), ("x > 5", r"x \ge 5"), ("x<1", "x>-1")]
        {
            assert!(!is_same(left, right), "{left} {right}");
        }
    }
}
