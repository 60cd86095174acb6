// Maps, strings, threads, channels, panics that are caught: prints a digest of all of it, once a line has come.
use std::collections::{BTreeMap, HashMap};
use std::io::{BufRead, Write};
use std::panic;
use std::sync::{mpsc, Arc, Mutex};
use std::thread;

trait Shape { fn area(&self) -> f64; }
struct Square(f64);
struct Circle(f64);
impl Shape for Square { fn area(&self) -> f64 { self.0 * self.0 } }
impl Shape for Circle { fn area(&self) -> f64 { self.0 * self.0 * 3.25 } }

#[inline(never)]
fn digest(text: &str) -> u64 {
    text.bytes().fold(14695981039346656037, |h, b| (h ^ b as u64).wrapping_mul(1099511628211))
}

#[inline(never)]
fn parse(text: &str) -> Result<i64, String> {
    let (sign, digits) = match text.strip_prefix('-') { Some(rest) => (-1, rest), None => (1, text) };
    digits.parse::<i64>().map(|n| n * sign).map_err(|e| format!("{}: {}", text, e))
}

#[inline(never)]
fn risky(n: usize, list: &[u32]) -> u32 { list[n] + n as u32 }

fn round(n: usize) -> String {
    let mut words: BTreeMap<String, usize> = BTreeMap::new();
    for w in format!("a{} b{} c{} a{}", n % 3, n % 5, n % 7, n % 2).split(' ') { *words.entry(w.to_string()).or_default() += n; }
    let shapes: Vec<Box<dyn Shape>> = (0..n % 9).map(|i| if i % 2 == 0 { Box::new(Square(i as f64)) as Box<dyn Shape> } else { Box::new(Circle(i as f64)) }).collect();
    let area: f64 = shapes.iter().map(|s| s.area()).sum();
    let mut sorted: Vec<(u64, String)> = words.iter().map(|(k, v)| (digest(k) >> (v % 60), k.clone())).collect();
    sorted.sort_by(|a, b| b.cmp(a));
    let list = [1u32, 2, 3, 5, 8];
    let caught = panic::catch_unwind(|| risky(n % 8, &list)).map_err(|_| "caught");
    format!("{:?} {:.3} {:?} {:?} {:?}", sorted, area, caught, parse(&format!("-{}", n)), parse(&format!("{}x", n)))
}

fn main() {
    panic::set_hook(Box::new(|_| {}));
    println!("ready");
    std::io::stdout().flush().unwrap();
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line).unwrap();
    let totals = Arc::new(Mutex::new(HashMap::new()));
    let (sender, receiver) = mpsc::channel();
    let workers: Vec<_> = (0..4).map(|t| {
        let (totals, sender) = (totals.clone(), sender.clone());
        thread::spawn(move || for n in (t * 100)..(t * 100 + 100) {
            let text = round(n);
            totals.lock().unwrap().insert(n, digest(&text));
            sender.send((n, text.len())).unwrap();
        })
    }).collect();
    drop(sender);
    let lengths: usize = receiver.iter().map(|(n, length)| n % 7 * length).sum();
    for worker in workers { worker.join().unwrap(); }
    let mut all: Vec<_> = totals.lock().unwrap().iter().map(|(n, d)| (*n, *d)).collect();
    all.sort();
    println!("{} {} {:016x}", all.len(), lengths, all.iter().fold(0u64, |h, (n, d)| h.rotate_left(5) ^ d ^ *n as u64));
}
