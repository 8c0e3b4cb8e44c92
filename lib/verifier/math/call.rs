//! Functions of values in normal form, and of whole numbers.

use num_integer::Integer;
use num_traits::{One, Signed, Zero};

use crate::math::form::{Form, Quotient};
use crate::math::polynomial::Atom;
use crate::math::rational::{self, Rational};
use crate::math::tree::{Constant, Expr, Function};

impl Form {
    pub(super) fn call(&mut self, function: Function, arguments: &[Expr]) -> Option<Quotient> {
        let one = Expr::whole(1);
        let first = arguments.first()?;
        match function {
            Function::Root => {
                let degree = Expr::quotient(one, arguments.get(1)?.clone());
                self.quotient(&Expr::Power(Box::new(first.clone()), Box::new(degree)))
            }
            Function::Exp => {
                let base = Expr::Constant(Constant::E);
                self.quotient(&Expr::Power(Box::new(base), Box::new(first.clone())))
            }
            Function::Ln => self.logarithm(first),
            Function::Log => {
                let value = self.logarithm(first)?;
                let base = match self.log_base {
                    Some(base) => self.logarithm(&Expr::whole(base))?,
                    None => return Some(value),
                };
                let inverse = self.whole_power(&base, -1)?;
                self.multiply(&value, &inverse)
            }
            Function::LogBase => {
                let value = self.logarithm(first)?;
                let base = self.logarithm(arguments.get(1)?)?;
                let inverse = self.whole_power(&base, -1)?;
                self.multiply(&value, &inverse)
            }
            _ => {
                let values: Option<Vec<Quotient>> =
                    arguments.iter().map(|argument| self.quotient(argument)).collect();
                self.call_on(function, &values?)
            }
        }
    }

    /// A function of arguments in normal form.
    fn call_on(&mut self, function: Function, values: &[Quotient]) -> Option<Quotient> {
        match function {
            Function::Sec | Function::Csc => {
                let inverse = if function == Function::Sec { Function::Cos } else { Function::Sin };
                let value = self.opaque(inverse, values)?;
                self.whole_power(&value, -1)
            }
            Function::Tan | Function::Cot => {
                let (sin, cos) = (self.opaque(Function::Sin, values)?, self.opaque(Function::Cos, values)?);
                let (above, below) = if function == Function::Tan { (sin, cos) } else { (cos, sin) };
                let below = self.whole_power(&below, -1)?;
                self.multiply(&above, &below)
            }
            _ => {
                let numbers: Option<Vec<Rational>> = values.iter().map(Quotient::as_constant).collect();
                match numbers.and_then(|numbers| on_numbers(function, &numbers)) {
                    Some(value) => Some(Quotient::constant(value)),
                    None => self.opaque(function, values),
                }
            }
        }
    }

    fn opaque(&mut self, function: Function, values: &[Quotient]) -> Option<Quotient> {
        let key = self.keys(values)?;
        self.atom(format!("{function:?}({key})"), Atom::Opaque)
    }

    /// A natural logarithm: of a positive rational the sum over its primes, of powers of e their exponent.
    fn logarithm(&mut self, argument: &Expr) -> Option<Quotient> {
        let value = self.quotient(argument)?;
        if let Some(number) = value.as_constant().filter(Rational::is_positive) {
            let mut sum = Quotient::constant(Rational::zero());
            for (number, sign) in [(number.numer(), 1), (number.denom(), -1)] {
                for (prime, count) in rational::factors(number) {
                    let log = self.atom(format!("ln:{prime}"), Atom::Opaque)?;
                    let count = Quotient::constant(rational::whole(i64::from(count) * sign));
                    let part = self.multiply(&log, &count)?;
                    sum = self.add(&sum, &part)?;
                }
            }
            return Some(sum);
        }
        if value.below.as_constant().is_some()
            && let Some((monomial, coefficient)) = value.above.as_term()
            && coefficient.is_one()
            && let [(atom, exponent)] = &monomial.0[..]
            && *self.ring.kind(*atom) == Atom::E
        {
            let (above, below) = (*exponent.numer(), *exponent.denom());
            return Some(Quotient::constant(rational::whole(above) / rational::whole(below)));
        }
        let key = value.key();
        self.atom(format!("Ln({key})"), Atom::Opaque)
    }
}

/// Functions of rational numbers with a rational value.
pub(crate) fn on_numbers(function: Function, values: &[Rational]) -> Option<Rational> {
    let whole = |at: usize| values.get(at).and_then(rational::small);
    let first = values.first()?;
    match function {
        Function::Abs => Some(first.abs()),
        Function::Floor => Some(first.floor()),
        Function::Ceil => Some(first.ceil()),
        Function::Factorial => rational::factorial(whole(0)?).map(Rational::from_integer),
        Function::Binomial => rational::binomial(whole(0)?, whole(1)?).map(Rational::from_integer),
        Function::Max => values.iter().max().cloned(),
        Function::Min => values.iter().min().cloned(),
        Function::Gcd | Function::Lcm => {
            if !values.iter().all(Rational::is_integer) {
                return None;
            }
            let numbers = values.iter().map(Rational::to_integer);
            let result =
                numbers.reduce(|a, b| if function == Function::Gcd { a.gcd(&b) } else { a.lcm(&b) })?;
            Some(Rational::from_integer(result))
        }
        Function::Modulo => {
            let modulus = values.get(1).filter(|modulus| modulus.is_integer() && modulus.is_positive())?;
            let remainder = first.is_integer().then(|| first.numer().mod_floor(modulus.numer()))?;
            Some(Rational::from_integer(remainder))
        }
        _ => None,
    }
}
