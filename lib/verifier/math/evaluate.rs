//! The value of an expression at a point, as a ball. The work is counted.

use crate::math::ball::Ball;
use crate::math::call::on_numbers;
use crate::math::rational::{self, Rational};
use crate::math::real::Real;
use crate::math::tree::{Constant, Expr, Function};
use crate::math::unit::Dimension;
use num_bigint::BigInt;
use num_traits::{One, Signed, ToPrimitive, Zero};

/// Values of expressions with variables at a point.
pub(crate) struct Evaluator<'a, R: Real> {
    pub(crate) constants: R::Constants,
    /// The value of a variable.
    pub(crate) point: &'a dyn Fn(&str) -> Rational,
    /// The base of logarithms without one; nothing is e.
    pub(crate) log_base: Option<i64>,
    /// Units of work that are left, of about 0.1 us.
    pub(crate) work: &'a mut u64,
}

impl<R: Real> Evaluator<'_, R> {
    /// The value; nothing when it is undefined, out of range or too much work.
    pub(crate) fn value(&mut self, expr: &Expr) -> Option<Ball<R>> {
        self.spend(R::COST.0)?;
        match expr {
            Expr::Number { value, .. } => Ball::of(value),
            Expr::Constant(Constant::Pi) => Ball::pi(&mut self.constants),
            Expr::Constant(Constant::E) => Ball::whole(1).exp(&mut self.constants),
            Expr::Constant(Constant::I) => Some(Ball::i()),
            Expr::Symbol(name) => Ball::of(&(self.point)(name)),
            Expr::Sum(terms) => {
                let mut sum = Ball::whole(0);
                for term in terms {
                    sum = sum.add(&self.value(term)?)?;
                }
                Some(sum)
            }
            Expr::Product(factors) => {
                let mut product = Ball::whole(1);
                for factor in factors {
                    self.spend(2 * R::COST.0)?;
                    product = product.multiply(&self.value(factor)?)?;
                }
                Some(product)
            }
            Expr::Power(base, exponent) => self.power(base, exponent),
            Expr::Quantity(value, unit) => {
                let value = self.value(value)?;
                match unit.known.as_ref()? {
                    (Dimension::Percent, size) => value.multiply(&Ball::of(size)?),
                    (Dimension::Angle, size) => value
                        .multiply(&Ball::of(&(size / rational::whole(180)))?)?
                        .multiply(&Ball::pi(&mut self.constants)?),
                    _ => None,
                }
            }
            Expr::Call(function, arguments) => self.call(*function, arguments),
            _ => None,
        }
    }

    fn spend(&mut self, units: u64) -> Option<()> {
        *self.work = self.work.checked_sub(units)?;
        Some(())
    }

    fn power(&mut self, base: &Expr, exponent: &Expr) -> Option<Ball<R>> {
        let base = self.value(base)?;
        if let Some(exponent) = exact(exponent) {
            return self.rational_power(&base, &exponent);
        }
        let exponent = self.value(exponent)?;
        self.general_power(&base, &exponent)
    }

    /// A power with an exact exponent: odd roots of negative numbers are negative.
    fn rational_power(&mut self, base: &Ball<R>, exponent: &Rational) -> Option<Ball<R>> {
        if let Some(whole) = rational::small(exponent)
            && whole.unsigned_abs() <= 4096
        {
            self.spend(24 * R::COST.0)?;
            let power = base.power(whole.unsigned_abs() as u32)?;
            return if whole < 0 { power.inverse() } else { Some(power) };
        }
        if *exponent == Rational::new(BigInt::one(), BigInt::from(2)) {
            self.spend(4 * R::COST.0)?;
            return base.sqrt();
        }
        let is_odd = |number: &BigInt| number.bit(0);
        if base.is_negative() && is_odd(exponent.denom()) {
            let power = self.general_power(&base.negative(), &Ball::of(exponent)?)?;
            return Some(if is_odd(exponent.numer()) { power.negative() } else { power });
        }
        self.general_power(base, &Ball::of(exponent)?)
    }

    fn general_power(&mut self, base: &Ball<R>, exponent: &Ball<R>) -> Option<Ball<R>> {
        if base.re.is_zero() && base.im.is_zero() && base.radius == 0.0 {
            return (exponent.re.to_f64() > exponent.radius).then(|| Ball::whole(0));
        }
        self.spend(4 * R::COST.1)?;
        let logarithm = base.ln(&mut self.constants)?;
        logarithm.multiply(exponent)?.exp(&mut self.constants)
    }

    fn call(&mut self, function: Function, arguments: &[Expr]) -> Option<Ball<R>> {
        if let (Function::Root, [radicand, degree]) = (function, arguments) {
            let degree = exact(degree).filter(|degree| !degree.is_zero())?;
            let radicand = self.value(radicand)?;
            return self.rational_power(&radicand, &degree.recip());
        }
        let mut values = Vec::with_capacity(arguments.len());
        for argument in arguments {
            values.push(self.value(argument)?);
        }
        self.spend(4 * R::COST.1)?;
        let first = values.first()?;
        match function {
            Function::Abs => first.abs(),
            Function::Exp => first.exp(&mut self.constants),
            Function::Ln => first.ln(&mut self.constants),
            Function::Log => {
                let value = first.ln(&mut self.constants)?;
                match self.log_base {
                    Some(base) => value.divide(&Ball::whole(base).ln(&mut self.constants)?),
                    None => Some(value),
                }
            }
            Function::LogBase => {
                let base = values.get(1)?.ln(&mut self.constants)?;
                first.ln(&mut self.constants)?.divide(&base)
            }
            Function::Floor
            | Function::Ceil
            | Function::Factorial
            | Function::Binomial
            | Function::Gcd
            | Function::Lcm
            | Function::Modulo => on_whole(function, &values),
            Function::Max | Function::Min => extreme(function, &values),
            _ => self.trigonometric(function, first),
        }
    }

    fn trigonometric(&mut self, function: Function, value: &Ball<R>) -> Option<Ball<R>> {
        let c = &mut self.constants;
        let one = Ball::whole(1);
        // Hyperbolic functions are circular ones on the imaginary line: sinh z = -i sin iz.
        let turned = || value.multiply(&Ball::i());
        let back = |value: Ball<R>| value.multiply(&Ball::i().negative());
        match function {
            Function::Sin => Some(value.sin_cos(c)?.0),
            Function::Cos => Some(value.sin_cos(c)?.1),
            Function::Sec => value.sin_cos(c)?.1.inverse(),
            Function::Csc => value.sin_cos(c)?.0.inverse(),
            Function::Tan => {
                let (sin, cos) = value.sin_cos(c)?;
                sin.divide(&cos)
            }
            Function::Cot => {
                let (sin, cos) = value.sin_cos(c)?;
                cos.divide(&sin)
            }
            Function::Asin => value.asin(c),
            Function::Acos => Ball::pi(c)?.divide(&Ball::whole(2))?.subtract(&value.asin(c)?),
            Function::Atan => value.atan(c),
            Function::Sinh => back(turned()?.sin_cos(c)?.0),
            Function::Cosh => Some(turned()?.sin_cos(c)?.1),
            Function::Tanh => {
                let (sin, cos) = turned()?.sin_cos(c)?;
                back(sin.divide(&cos)?)
            }
            Function::Asinh => {
                let root = value.multiply(value)?.add(&one)?.sqrt()?;
                value.add(&root)?.ln(c)
            }
            Function::Acosh => {
                let root = value.add(&one)?.sqrt()?.multiply(&value.subtract(&one)?.sqrt()?)?;
                value.add(&root)?.ln(c)
            }
            Function::Atanh => {
                let quotient = one.add(value)?.divide(&one.subtract(value)?)?;
                quotient.ln(c)?.divide(&Ball::whole(2))
            }
            _ => None,
        }
    }
}

/// Functions of whole numbers, and the whole parts of others: nothing when the ball does not tell which.
fn on_whole<R: Real>(function: Function, values: &[Ball<R>]) -> Option<Ball<R>> {
    let round = match function {
        Function::Floor => f64::floor,
        Function::Ceil => f64::ceil,
        _ => f64::round,
    };
    let is_rounding = matches!(function, Function::Floor | Function::Ceil);
    let number = |value: &Ball<R>| {
        let centre = value.re.to_f64();
        let (from, to) = (round(centre - value.radius), round(centre + value.radius));
        let is_told =
            (to - from).abs() < 0.5 && (is_rounding || (centre - from).abs() <= value.radius.max(1e-9));
        (value.is_real() && centre.abs() < 1e15 && is_told).then(|| from.to_i64().map(rational::whole))?
    };
    let numbers: Option<Vec<Rational>> = values.iter().map(number).collect();
    Ball::of(&on_numbers(function, &numbers?)?)
}

/// The largest or smallest of real values that are apart.
fn extreme<R: Real>(function: Function, values: &[Ball<R>]) -> Option<Ball<R>> {
    let mut best = values.first()?;
    for value in values {
        if !value.is_real() {
            return None;
        }
        let is_larger = value.re.to_f64() > best.re.to_f64();
        if is_larger == (function == Function::Max) {
            best = value;
        }
    }
    Some(best.clone())
}

/// An exponent that is a rational number as written, without arithmetic on variables.
fn exact(expr: &Expr) -> Option<Rational> {
    match expr {
        Expr::Number { value, .. } => Some(value.clone()),
        Expr::Product(factors) => {
            let mut product = rational::whole(1);
            for factor in factors {
                product *= exact(factor)?;
            }
            (product.numer().bits() < 64 && product.denom().bits() < 64).then_some(product)
        }
        Expr::Power(base, exponent) => {
            let (base, exponent) = (exact(base)?, rational::small(&exact(exponent)?)?);
            if exponent == -1 && !base.is_zero() { Some(base.recip()) } else { None }
        }
        Expr::Sum(terms) => {
            let mut sum = rational::whole(0);
            for term in terms {
                sum += exact(term)?;
            }
            (sum.abs().numer().bits() < 64 && sum.denom().bits() < 64).then_some(sum)
        }
        _ => None,
    }
}
