// A Rust program that passes values of every kind. It speaks the protocol of protocol.h.
use std::future::Future;
use std::hint::{black_box, black_box as b};
use std::io::BufRead;
use std::pin::Pin;
use std::task::{Context, Poll, RawWaker, RawWakerVTable, Waker};

pub struct Inner {
    pub port: u16,
    pub host: String,
}

pub struct Request {
    pub method: &'static str,
    pub path: String,
    pub tags: Vec<u32>,
    pub near: Inner,
    pub far: Option<Box<Inner>>,
    pub size: Option<u64>,
}

#[derive(Clone, Copy)]
pub struct Point {
    pub x: i32,
    pub y: f64,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Fault {
    Missing,
    Code(i32),
}

pub enum Shape {
    Circle { radius: f64 },
    Square(u32),
    Nothing,
}

pub struct Server {
    pub name: String,
}

#[inline(never)]
pub fn numbers(a: i8, b_: f64, c: u16, d: f32, e: bool, f: i64, g: char) -> i64 {
    black_box(a as i64 + b_ as i64 + c as i64 + d as i64 + e as i64 + f + g as i64)
}

#[inline(never)]
pub fn text(path: &str, n: i32) -> usize {
    black_box(path);
    black_box(path.len() + n as usize)
}

#[inline(never)]
pub fn owned(path: String, n: i32) -> usize {
    black_box(path.len() + n as usize)
}

#[inline(never)]
pub fn borrowed(path: &String, numbers: &Vec<u32>) -> usize {
    black_box((path, numbers));
    black_box(path.len() + numbers.len())
}

#[inline(never)]
pub fn slice(numbers: &[u32], content: &[u8]) -> u32 {
    black_box((numbers, content));
    black_box(numbers.iter().sum::<u32>() + content.len() as u32)
}

#[inline(never)]
pub fn by_value(point: Point, size: Option<u32>) -> f64 {
    black_box(point.x as f64 + point.y + size.unwrap_or(0) as f64)
}

#[inline(never)]
pub fn trimmed(path: &str) -> &str {
    black_box(path.trim())
}

#[inline(never)]
pub fn made(path: &str) -> String {
    black_box(path.to_uppercase())
}

#[inline(never)]
pub fn halves(n: u64) -> Option<u64> {
    black_box(if n % 2 == 0 { Some(n / 2) } else { None })
}

#[inline(never)]
pub fn boxed(n: i32) -> Result<Box<i32>, i32> {
    black_box(if n < 0 { Err(n) } else { Ok(Box::new(n)) })
}

#[inline(never)]
pub fn mixed(given: Result<u64, u32>, n: u32) -> u64 {
    black_box(&given);
    black_box(given.unwrap_or(1) + n as u64)
}

#[inline(never)]
pub fn parsed(path: &str) -> Result<u32, Fault> {
    black_box(path);
    black_box(match path.len() {
        0 => Err(Fault::Missing),
        n if n > 20 => Err(Fault::Code(-(n as i32))),
        n => Ok(n as u32),
    })
}

#[inline(never)]
pub fn read(path: &str) -> Result<String, Fault> {
    black_box(if path.is_empty() { Err(Fault::Code(7)) } else { Ok(path.to_lowercase()) })
}

#[inline(never)]
pub fn wide(n: u64) -> u128 {
    black_box((n as u128) << 64 | 1)
}

#[inline(never)]
pub fn found(request: &Request, wanted: u32) -> Option<&u32> {
    black_box(request);
    black_box(request.tags.iter().find(|each| **each == wanted))
}

#[inline(never)]
pub fn area(shape: &Shape) -> f64 {
    black_box(match shape {
        Shape::Circle { radius } => radius * radius * 3.0,
        Shape::Square(side) => (side * side) as f64,
        Shape::Nothing => 0.0,
    })
}

impl Server {
    #[inline(never)]
    pub fn handle(&self, request: &Request) -> usize {
        black_box((self, request));
        black_box(self.name.len() + request.path.len())
    }
}

#[inline(never)]
pub fn generic<T: Copy + Into<u64>>(value: T, n: u32) -> u64 {
    black_box(value.into() + n as u64)
}

struct Yield(bool);

impl Future for Yield {
    type Output = ();
    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        if self.0 {
            return Poll::Ready(());
        }
        self.0 = true;
        Poll::Pending
    }
}

#[inline(never)]
pub async fn serve(n: u64) -> u64 {
    let mut total = n;
    for each in 0..n {
        Yield(false).await;
        total += each;
    }
    black_box(total)
}

fn nothing(_: *const ()) {}
fn again(_: *const ()) -> RawWaker {
    RawWaker::new(std::ptr::null(), &TABLE)
}
static TABLE: RawWakerVTable = RawWakerVTable::new(again, nothing, nothing, nothing);

fn run(future: Box<dyn Future<Output = u64>>) -> u64 {
    let waker = unsafe { Waker::from_raw(again(std::ptr::null())) };
    let mut context = Context::from_waker(&waker);
    let mut pinned = b(Pin::from(future));
    loop {
        if let Poll::Ready(value) = pinned.as_mut().poll(&mut context) {
            return value;
        }
    }
}

fn round() {
    b(numbers(b(-1), b(2.5), b(300), b(0.25), b(true), b(-5_000_000_000), b('x')));
    b(text(b("/index.html"), b(42)));
    b(text(b(""), b(0)));
    b(text(b("Grüße\0end"), b(1)));
    b(owned(b("an owned string".to_string()), b(3)));
    let list = vec![7, 8, 9];
    b(borrowed(b(&"a borrowed string".to_string()), b(&list)));
    b(slice(b(&list[..2]), b("content".as_bytes())));
    b(by_value(b(Point { x: -3, y: 4.5 }), b(Some(5))));
    b(by_value(b(Point { x: 3, y: -4.5 }), b(None)));
    b(trimmed(b("  padded ")));
    b(made(b("made")));
    b(boxed(b(3)).is_ok());
    b(boxed(b(-3)).is_ok());
    b(mixed(b(Ok(5)), b(6)));
    b(mixed(b(Err(7)), b(8)));
    b(halves(b(84)));
    b(halves(b(7)));
    let _ = b(parsed(b("four")));
    let _ = b(parsed(b("")));
    let _ = b(parsed(b("more than twenty bytes")));
    let _ = b(read(b("READ")));
    let _ = b(read(b("")));
    b(wide(b(3)));
    let mut request = Request {
        method: "GET",
        path: "/path".to_string(),
        tags: list,
        near: Inner { port: 80, host: "near".to_string() },
        far: Some(Box::new(Inner { port: 443, host: "far away".to_string() })),
        size: Some(1234),
    };
    b(found(b(&request), b(8)));
    b(found(b(&request), b(10)));
    b(area(b(&Shape::Circle { radius: 2.0 })));
    b(area(b(&Shape::Square(3))));
    b(area(b(&Shape::Nothing)));
    let server = Server { name: "main server".to_string() };
    b(b(&server).handle(b(&request)));
    request.far = None;
    request.size = None;
    b(b(&server).handle(b(&request)));
    b(generic(b(5u32), b(1)));
    b(generic(b(6u8), b(2)));
    assert_eq!(run(Box::new(serve(b(3)))), 6);
}

fn main() {
    println!("ready {}", std::process::id());
    for line in std::io::stdin().lock().lines() {
        let line = line.unwrap();
        let Some(count) = line.strip_prefix("go ") else { break };
        for _ in 0..count.trim().parse::<u32>().unwrap() {
            round();
        }
        println!("done");
    }
    println!("ok");
}
