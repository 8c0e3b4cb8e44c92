//! Polynomials with rational coefficients over atoms (variables, roots, constants, function values), whose exponents
//! may be fractions. The work is counted, and what would cost too much is refused.

use std::collections::BTreeMap;

use num_bigint::BigInt;
use num_rational::Ratio;
use num_traits::{One, Signed, Zero};

use crate::math::rational::{MAX_BITS, Rational, power};

/// More terms than this are not computed with.
const MAX_TERMS: usize = 300;
/// Larger exponents are not computed with.
const MAX_EXPONENT: i64 = 10_000;

/// An exponent.
pub(crate) type Exponent = Ratio<i64>;

/// Atoms with their exponents, in the order of the atoms; none is zero.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct Monomial(pub(crate) Vec<(u32, Exponent)>);

/// What an atom is, as far as computing needs to know.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Atom {
    /// A variable.
    Symbol,
    /// A natural number without small factors that could be split off: its fractional powers are roots.
    Prime(BigInt),
    Pi,
    E,
    /// The imaginary unit.
    I,
    /// Something of which only the identity is known.
    Opaque,
}

/// Atoms by number, and the work still allowed.
#[derive(Debug)]
pub(crate) struct Ring {
    atoms: Vec<Atom>,
    names: BTreeMap<String, u32>,
    work: u64,
}

/// A sum of monomials with their coefficients, none of them zero.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct Polynomial(pub(crate) BTreeMap<Monomial, Rational>);

impl Ring {
    /// A ring that may do so many units of work; a unit is about the product of two short coefficients.
    pub(crate) fn with_work(work: u64) -> Self {
        Self { atoms: Vec::new(), names: BTreeMap::new(), work }
    }

    /// The number of the atom of this name.
    pub(crate) fn atom(&mut self, name: String, atom: Atom) -> u32 {
        let next = self.atoms.len() as u32;
        let number = *self.names.entry(name).or_insert(next);
        if number == next {
            self.atoms.push(atom);
        }
        number
    }

    /// What an atom is.
    pub(crate) fn kind(&self, atom: u32) -> &Atom {
        self.atoms.get(atom as usize).unwrap_or(&Atom::Opaque)
    }

    /// Takes units from the work that is left.
    pub(crate) fn spend(&mut self, units: u64) -> Option<()> {
        self.work = self.work.checked_sub(units)?;
        Some(())
    }

    /// The product of coefficients, charged by their length.
    fn multiply(&mut self, left: &Rational, right: &Rational) -> Option<Rational> {
        let words = (bits(left) + bits(right)) / 64;
        self.spend(1 + words * words / 16)?;
        let product = left * right;
        (bits(&product) <= 2 * MAX_BITS).then_some(product)
    }

    /// A coefficient times atoms, in normal form: whole powers of primes and of i go into the coefficient.
    pub(crate) fn term(
        &mut self,
        coefficient: &Rational,
        factors: Vec<(u32, Exponent)>,
    ) -> Option<Polynomial> {
        let mut coefficient = coefficient.clone();
        let mut kept = Vec::with_capacity(factors.len());
        for (atom, exponent) in factors {
            if exponent.is_zero() {
                continue;
            }
            if exponent.numer().abs() > MAX_EXPONENT || *exponent.denom() > MAX_EXPONENT {
                return None;
            }
            match self.kind(atom).clone() {
                Atom::Prime(prime) => {
                    let whole = exponent.floor().to_integer();
                    let factor = power(&Rational::from_integer(prime), whole)?;
                    coefficient = self.multiply(&coefficient, &factor)?;
                    let rest = exponent - Ratio::from_integer(whole);
                    if !rest.is_zero() {
                        kept.push((atom, rest));
                    }
                }
                Atom::I if exponent.is_integer() => {
                    let quarter = exponent.to_integer().rem_euclid(4);
                    if quarter >= 2 {
                        coefficient = -coefficient;
                    }
                    if quarter % 2 == 1 {
                        kept.push((atom, Exponent::one()));
                    }
                }
                _ => kept.push((atom, exponent)),
            }
        }
        let mut terms = BTreeMap::new();
        if !coefficient.is_zero() {
            terms.insert(Monomial(kept), coefficient);
        }
        Some(Polynomial(terms))
    }

    /// The sum.
    pub(crate) fn add(&mut self, left: &Polynomial, right: &Polynomial) -> Option<Polynomial> {
        let mut sum = left.clone();
        for (monomial, coefficient) in &right.0 {
            let words = bits(coefficient) / 64;
            self.spend(1 + words * words / 16)?;
            let entry = sum.0.entry(monomial.clone()).or_insert_with(Rational::zero);
            *entry += coefficient;
            if bits(entry) > 2 * MAX_BITS {
                return None;
            }
            if entry.is_zero() {
                sum.0.remove(monomial);
            }
        }
        (sum.0.len() <= MAX_TERMS).then_some(sum)
    }

    /// The product.
    pub(crate) fn product(&mut self, left: &Polynomial, right: &Polynomial) -> Option<Polynomial> {
        let mut sum = Polynomial::default();
        for (first, a) in &left.0 {
            for (second, b) in &right.0 {
                let coefficient = self.multiply(a, b)?;
                let term = self.term(&coefficient, joined(first, second)?)?;
                sum = if sum.0.is_empty() { term } else { self.add_into(sum, term)? };
            }
        }
        Some(sum)
    }

    /// Adds a few terms to many without copying the many.
    fn add_into(&mut self, mut sum: Polynomial, terms: Polynomial) -> Option<Polynomial> {
        for (monomial, coefficient) in terms.0 {
            self.spend(1 + (bits(&coefficient) / 64).pow(2) / 16)?;
            let entry = sum.0.entry(monomial.clone()).or_insert_with(Rational::zero);
            *entry += coefficient;
            if entry.is_zero() {
                sum.0.remove(&monomial);
            }
        }
        (sum.0.len() <= MAX_TERMS).then_some(sum)
    }

    /// A natural power, by squaring.
    pub(crate) fn power(&mut self, base: &Polynomial, exponent: u32) -> Option<Polynomial> {
        let mut result = Polynomial::constant(Rational::one());
        let mut square = base.clone();
        let mut rest = exponent;
        while rest > 0 {
            if rest % 2 == 1 {
                result = self.product(&result, &square)?;
            }
            rest /= 2;
            if rest > 0 {
                square = self.product(&square, &square)?;
            }
        }
        Some(result)
    }

    /// Whether different monomials of the polynomial cannot cancel, so that it is zero only when it has no terms:
    /// roots of primes are linearly independent over the rationals (Besicovitch 1940), pi is transcendental
    /// (Lindemann), variables are free. Nothing is known of e beside pi, nor of function values.
    pub(crate) fn is_independent(&self, polynomial: &Polynomial) -> bool {
        // A number below this without divisors below a thousand is a prime.
        let proven = BigInt::from(1_000_000);
        let mut has_pi = false;
        let mut has_e = false;
        for (atom, _) in polynomial.0.keys().flat_map(|monomial| &monomial.0) {
            match self.kind(*atom) {
                Atom::Opaque => return false,
                Atom::Prime(prime) if *prime >= proven => return false,
                Atom::Pi => has_pi = true,
                Atom::E => has_e = true,
                Atom::Symbol | Atom::Prime(_) | Atom::I => {}
            }
        }
        !(has_pi && has_e)
    }
}

impl Polynomial {
    /// A constant.
    pub(crate) fn constant(value: Rational) -> Self {
        let mut terms = BTreeMap::new();
        if !value.is_zero() {
            terms.insert(Monomial::default(), value);
        }
        Self(terms)
    }

    /// The value, where there are no atoms.
    pub(crate) fn as_constant(&self) -> Option<Rational> {
        match self.0.len() {
            0 => Some(Rational::zero()),
            1 => self.0.get(&Monomial::default()).cloned(),
            _ => None,
        }
    }

    /// The only term, where there is one.
    pub(crate) fn as_term(&self) -> Option<(&Monomial, &Rational)> {
        if self.0.len() == 1 { self.0.iter().next() } else { None }
    }

    /// A name that equal polynomials of one ring share.
    pub(crate) fn key(&self) -> String {
        use std::fmt::Write;
        let mut key = String::new();
        for (monomial, coefficient) in &self.0 {
            let _ = write!(key, "{coefficient}");
            for (atom, exponent) in &monomial.0 {
                let _ = write!(key, "#{atom}^{exponent}");
            }
            key.push('+');
        }
        key
    }
}

fn bits(value: &Rational) -> u64 {
    value.numer().bits() + value.denom().bits()
}

/// The product of two monomials before reduction.
fn joined(left: &Monomial, right: &Monomial) -> Option<Vec<(u32, Exponent)>> {
    let mut factors = left.0.clone();
    for (atom, exponent) in &right.0 {
        match factors.binary_search_by_key(atom, |(atom, _)| *atom) {
            Ok(at) => {
                // Both are bounded by MAX_EXPONENT above and below, so nothing overflows.
                let sum = factors.get(at)?.1 + exponent;
                factors.get_mut(at)?.1 = sum;
            }
            Err(at) => factors.insert(at, (*atom, *exponent)),
        }
    }
    Some(factors)
}
