//! example.c in Rust: sums the ranks of a job.
//!
//!     rustc -O example.rs -L /opt/tessera/lib -C link-arg=-Wl,-rpath,/opt/tessera/lib
//!     tessera launch --np=4 -- ./example
use std::ffi::{CStr, CString};
use std::os::raw::{c_char, c_void};
use std::process::exit;
use std::ptr::{null, null_mut};

mod tessera {
    use super::*;

    pub const F32: i32 = 1;
    pub const SUM: i32 = 0;

    #[link(name = "tessera")]
    extern "C" {
        pub fn tessera_error_message() -> *const c_char;
        pub fn tessera_communicator_join(engine: *const c_char, timeout: f64, communicator: *mut *mut c_void) -> i32;
        pub fn tessera_communicator_destroy(communicator: *mut c_void);
        pub fn tessera_communicator_rank(communicator: *const c_void) -> i64;
        pub fn tessera_all_reduce(
            communicator: *mut c_void, input: *const c_void, output: *mut c_void, count: i64, dtype: i32, reduction: i32,
        ) -> i32;
        pub fn tessera_mesh_create(axes: *const c_char, order: *const c_char, mesh: *mut *mut c_void) -> i32;
        pub fn tessera_mesh_destroy(mesh: *mut c_void);
        pub fn tessera_mesh_group(
            mesh: *const c_void, rank: i64, axes: *const c_char, ranks: *mut i64, capacity: i64, size: *mut i64,
        ) -> i32;
    }
}
use tessera::*;

fn check(status: i32) -> Result<(), String> {
    match status {
        0 => Ok(()),
        _ => Err(unsafe { CStr::from_ptr(tessera_error_message()) }.to_string_lossy().into_owned()),
    }
}

struct Communicator(*mut c_void);

impl Communicator {
    fn join(engine: &str, timeout: f64) -> Result<Self, String> {
        let engine = CString::new(engine).map_err(|error| error.to_string())?;
        let mut communicator = null_mut();
        check(unsafe { tessera_communicator_join(engine.as_ptr(), timeout, &mut communicator) })?;
        Ok(Self(communicator))
    }

    fn rank(&self) -> i64 {
        unsafe { tessera_communicator_rank(self.0) }
    }

    fn sum(&mut self, values: &mut [f32]) -> Result<(), String> {
        let data = values.as_mut_ptr() as *mut c_void;
        check(unsafe { tessera_all_reduce(self.0, data, data, values.len() as i64, F32, SUM) })
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        unsafe { tessera_communicator_destroy(self.0) }
    }
}

struct Mesh(*mut c_void);

impl Mesh {
    fn new(axes: &str) -> Result<Self, String> {
        let axes = CString::new(axes).map_err(|error| error.to_string())?;
        let mut mesh = null_mut();
        check(unsafe { tessera_mesh_create(axes.as_ptr(), null(), &mut mesh) })?;
        Ok(Self(mesh))
    }

    fn group(&self, rank: i64, axes: &str) -> Result<Vec<i64>, String> {
        let axes = CString::new(axes).map_err(|error| error.to_string())?;
        let (mut ranks, mut size) = (vec![0; 64], 0);
        check(unsafe { tessera_mesh_group(self.0, rank, axes.as_ptr(), ranks.as_mut_ptr(), ranks.len() as i64, &mut size) })?;
        ranks.truncate(size as usize);
        Ok(ranks)
    }
}

impl Drop for Mesh {
    fn drop(&mut self) {
        unsafe { tessera_mesh_destroy(self.0) }
    }
}

fn run() -> Result<(), String> {
    let mut world = Communicator::join("shared_memory", 60.0)?;
    let rank = world.rank();
    let mut sum = [rank as f32];
    world.sum(&mut sum)?;
    let group = Mesh::new("dp2,tp2")?.group(rank, "tp")?;
    println!("rank {}: the sum of all ranks is {}; tensor group {} and {}", rank, sum[0], group[0], group[1]);
    Ok(())
}

fn main() {
    if let Err(message) = run() {
        eprintln!("{}", message);
        exit(1);
    }
}
