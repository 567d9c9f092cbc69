//! A process's handle of a simulated node: open, observe, change.
//!
//! Time is the wall clock, scaled by the clock in the node's file, less the time for which its grant held it.
//! An observation also checks
//! whether the processes on the GPUs are alive and releases the claims of dead ones at that
//! instant. A dead process therefore counts as load until the next observation by any process (a
//! driver call, a job's update), or [`LIVENESS_US`] later if observations are more frequent.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use wattle_common::time::TimeScale;
use wattle_common::time::grant::Grant;
use wattle_common::topology::GPUS_PER_NODE_MAX;
use wattle_common::{Energy, NodeId, Timestamp};
use wattle_world::{GpuModel, World};

use crate::layout::{self, Head, LayoutError};
use crate::liveness;
use crate::shared::{Shared, WriteGuard};
use crate::state::{ClaimRequest, Hardware, NodeState, StateError};

/// Interval between liveness checks of a node's processes (wall time, microseconds). A check costs a
/// system call per process, and a profiler makes hundreds of driver calls in succession.
pub const LIVENESS_US: u64 = 2_000;

/// Why a node cannot be opened or changed.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The file does not exist.
    #[error("{0}: no such node; create it with: wattle-simnode create --state {0}", path.display())]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// The file exists.
    #[error("{0}: file exists; remove it first, or choose another name", path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// The file is not a node's state, or was written by another release.
    #[error("{0}: {reason}", path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
        /// The problem.
        reason: String,
        /// Whether another release wrote the file.
        other_version: bool,
    },
    /// The catalog lacks the GPU type.
    #[error("unknown GPU type `{gpu_type}`: the catalog has {known}")]
    UnknownGpuType {
        /// The requested type.
        gpu_type: String,
        /// The types of the catalog.
        known: String,
    },
    /// Invalid number of GPUs.
    #[error("invalid number of GPUs {0}: expected 1 to {GPUS_PER_NODE_MAX}")]
    Count(u32),
    /// The file is read-only for this user.
    #[error("{0}: permission denied: read-only for this user", path.display())]
    ReadOnly {
        /// The file.
        path: PathBuf,
    },
    /// An I/O error.
    #[error("{0}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The node refuses the change.
    #[error(transparent)]
    Refused(#[from] StateError),
}

/// Properties of a new node.
#[derive(Clone, Debug)]
pub struct NodeSpec {
    /// Node id.
    pub node: NodeId,
    /// Number of GPUs.
    pub gpus: u32,
    /// GPU type of the catalog.
    pub gpu_type: String,
    /// Mapping from wall time to system time.
    pub clock: TimeScale,
}

/// Wall time, microseconds since the Unix epoch.
#[must_use]
#[expect(
    clippy::disallowed_methods,
    reason = "the simulated driver has its own clock, like a real driver"
)]
pub fn wall_us() -> u64 {
    let since = std::time::SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

/// Reading of the boot-time clock, in which the grant of the clock is expressed.
pub(crate) fn boot_time() -> Duration {
    let mut read = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer refers to a local value, into which the call writes. It fails only for an unknown clock.
    unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &raw mut read) };
    let (s, ns) = (u64::try_from(read.tv_sec), u32::try_from(read.tv_nsec));
    Duration::new(s.unwrap_or_default(), ns.unwrap_or_default())
}

/// Identifies the boot of the machine; 1 where the kernel does not name it.
fn boot() -> u64 {
    let id = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    // FNV-1a.
    id.iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    }) | 1
}

/// Wall time at reading zero of the boot-time clock, microseconds, from the best of some readings of both: the
/// kernel may run another process between two of them, and a rate multiplies the difference.
fn booted_us() -> u64 {
    let readings = (0..5).map(|_| {
        let before = boot_time();
        let wall = wall_us();
        let between = boot_time().saturating_sub(before);
        (between, wall.saturating_sub(u64::try_from(before.as_micros()).unwrap_or(u64::MAX)))
    });
    readings.min().map_or(0, |(_, booted)| booted)
}

/// The catalog, read once per process.
pub fn world() -> &'static World {
    static WORLD: OnceLock<World> = OnceLock::new();
    WORLD.get_or_init(World::builtin)
}

/// An observation of a node.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// The state as of its last event.
    pub state: Arc<NodeState>,
    /// System time of the observation.
    pub at: Timestamp,
}

#[derive(Debug, Default)]
struct Cache {
    /// The last state read and its sequence number.
    state: Option<(u64, Arc<NodeState>)>,
    /// Wall time of the last liveness check, microseconds.
    checked_us: u64,
    /// Last value of each energy counter since this load of the driver.
    energy: (Option<u64>, Vec<Energy>),
    /// Slots of the claims of this handle.
    own: Vec<usize>,
}

/// An open node.
#[derive(Debug)]
pub struct Node {
    path: PathBuf,
    shared: Shared,
    head: Head,
    model: &'static GpuModel,
    /// Wall time at reading zero of the boot-time clock, microseconds: a step of the wall clock changes nothing.
    boot_us: u64,
    cache: Mutex<Cache>,
}

fn model_of(gpu_type: &str) -> Result<&'static GpuModel, NodeError> {
    world().gpu(gpu_type).ok_or_else(|| NodeError::UnknownGpuType {
        gpu_type: gpu_type.to_owned(),
        known: world().gpus().map(|gpu| gpu.gpu_type.clone()).collect::<Vec<_>>().join(", "),
    })
}

impl Node {
    /// Creates a node's file atomically.
    ///
    /// # Errors
    /// If the file exists or the catalog lacks the GPU type.
    pub fn create(path: &Path, spec: &NodeSpec) -> Result<(), NodeError> {
        let model = model_of(&spec.gpu_type)?;
        if spec.gpus == 0 || spec.gpus > GPUS_PER_NODE_MAX {
            return Err(NodeError::Count(spec.gpus));
        }
        let gpus = spec.gpus as usize;
        let head = Head {
            clock: spec.clock,
            node: spec.node.clone(),
            gpu_type: spec.gpu_type.clone(),
            gpus,
        };
        let hardware = Hardware { world: world(), model };
        let state = NodeState::new(hardware, gpus, spec.clock.system(wall_us()));
        let mut words = head.to_words();
        words.extend(layout::state_to_words(&state));
        words.resize(layout::file_words(gpus), 0);
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();

        let failed = |source| NodeError::Io { path: path.to_owned(), source };
        let mut draft = path.as_os_str().to_owned();
        draft.push(format!(".{}.new", std::process::id()));
        let draft = PathBuf::from(draft);
        let written = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .open(&draft)
            .and_then(|mut file| file.write_all(&bytes))
            // Unlike a rename, a link never replaces a file that others have mapped.
            .and_then(|()| std::fs::hard_link(&draft, path));
        let _ = std::fs::remove_file(&draft);
        match written {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                Err(NodeError::Exists { path: path.to_owned() })
            }
            other => other.map_err(failed),
        }
    }

    /// Opens a node's file; read-only if writing is not permitted.
    ///
    /// # Errors
    /// The problem with the file and the remedy.
    pub fn open(path: &Path) -> Result<Self, NodeError> {
        let unusable = |reason: String, other_version| NodeError::Unusable {
            path: path.to_owned(),
            reason,
            other_version,
        };
        let shared = Shared::open(path).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => NodeError::Missing { path: path.to_owned() },
            io::ErrorKind::InvalidData => {
                unusable("not the state file of a simulated node".to_owned(), false)
            }
            _ => NodeError::Io { path: path.to_owned(), source },
        })?;
        let head = Head::from_words(&shared.head())
            .map_err(|e| unusable(e.to_string(), matches!(e, LayoutError::Version(_))))?;
        if !shared.fits(head.gpus) {
            return Err(unusable("the state is truncated; recreate the node".to_owned(), false));
        }
        let model = model_of(&head.gpu_type)?;
        let booted = shared.booted_us(boot(), booted_us);
        let booted = booted.map_err(|source| NodeError::Io { path: path.to_owned(), source });
        let (path, boot_us, cache) = (path.to_owned(), booted?, Mutex::default());
        let node = Self { path, shared, head, model, boot_us, cache };
        node.observe()?;
        Ok(node)
    }

    /// Node id.
    #[must_use]
    pub fn id(&self) -> &NodeId {
        &self.head.node
    }
    /// Number of GPUs.
    #[must_use]
    pub fn gpu_count(&self) -> u32 {
        self.head.gpus as u32
    }
    /// GPU model.
    #[must_use]
    pub fn model(&self) -> &'static GpuModel {
        self.model
    }
    /// Mapping from wall time to system time.
    #[must_use]
    pub fn clock(&self) -> TimeScale {
        self.head.clock
    }
    /// Path of its file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
    /// Wall time for which the clock was held.
    #[must_use]
    pub fn held(&self) -> Duration {
        self.shared.grant().held(boot_time())
    }
    /// Whether the clock is held now.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.shared.grant().is_held(boot_time())
    }
    /// Wall time less the time for which the clock was held, microseconds.
    #[must_use]
    pub fn granted_us(&self) -> u64 {
        // The grant first: a newer one than the reading of the clock would give an earlier time.
        let (grant, boot) = (self.shared.grant(), boot_time());
        let us = |span: Duration| u64::try_from(span.as_micros()).unwrap_or(u64::MAX);
        self.boot_us.saturating_add(us(boot)).saturating_sub(us(grant.held(boot)))
    }
    /// System time.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.head.clock.system(self.granted_us())
    }
    /// The grant of its clock.
    #[must_use]
    pub fn grant(&self) -> Grant {
        self.shared.grant()
    }
    /// Changes the grant of its clock.
    ///
    /// # Errors
    /// If the file is read-only.
    pub fn set_grant(&self, grant: Grant) -> Result<(), NodeError> {
        self.shared.set_grant(grant).map_err(|_| NodeError::ReadOnly { path: self.path.clone() })
    }

    fn hardware(&self) -> Hardware<'static> {
        Hardware { world: world(), model: self.model }
    }

    fn cache(&self) -> MutexGuard<'_, Cache> {
        // The cache is valid after a panic: its entries are replaced as a unit.
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn load(&self) -> Result<(u64, NodeState), NodeError> {
        let (sequence, words) = self.shared.get(self.head.gpus);
        let state = layout::state_from_words(&words, self.head.gpus).map_err(|error| {
            let (path, reason) = (self.path.clone(), error.to_string());
            NodeError::Unusable { path, reason, other_version: false }
        })?;
        Ok((sequence, state))
    }

    /// Slots of claims whose process has died.
    fn dead(&self, state: &NodeState, own: &[usize]) -> Vec<usize> {
        let file = self.shared.file();
        let is_dead = |slot: &usize| {
            state.claims[*slot].is_some()
                && !own.contains(slot)
                // On an error the process counts as alive.
                && !liveness::is_locked(file, *slot).unwrap_or(true)
        };
        (0..state.claims.len()).filter(is_dead).collect()
    }

    /// Observes the node now.
    ///
    /// # Errors
    /// If its file is corrupt.
    pub fn observe(&self) -> Result<Snapshot, NodeError> {
        let mut cache = self.cache();
        let wall = wall_us();
        let at = self.now();
        let sequence = self.shared.sequence();
        let is_current = cache.state.as_ref().is_some_and(|(cached, _)| *cached == sequence);
        if !is_current {
            let (sequence, state) = self.load()?;
            cache.state = Some((sequence, Arc::new(state)));
            cache.checked_us = 0;
        }
        let (sequence, mut state) = cache.state.clone().expect("read above");
        if wall.abs_diff(cache.checked_us) >= LIVENESS_US {
            cache.checked_us = wall;
            let dead = self.dead(&state, &cache.own);
            if !dead.is_empty() {
                if self.shared.writable() {
                    state = self.change(&mut cache, |_, _, _| Ok(()))?.1;
                } else {
                    let mut changed = NodeState::clone(&state);
                    changed.release(self.hardware(), at, &dead);
                    state = Arc::new(changed);
                    cache.state = Some((sequence, Arc::clone(&state)));
                }
            }
        }
        // Read after the state, so the last event is not in the future of this observation.
        let at = self.now().max(state.advanced_to);
        Ok(Snapshot { state, at })
    }

    /// Value of a GPU's energy counter, non-decreasing within this process until the driver is loaded again.
    ///
    /// An observation between the instant of an event and its write extrapolates with the previous
    /// power for some microseconds; without the bound the next value could be lower.
    #[must_use]
    pub fn energy_counter(&self, snapshot: &Snapshot, index: usize) -> Energy {
        let energy = snapshot.state.energy_counter(&snapshot.state.gpus[index], snapshot.at);
        let load = snapshot.state.driver.load();
        let mut cache = self.cache();
        let (cached_load, last) = &mut cache.energy;
        if *cached_load != load {
            (*cached_load, *last) = (load, Vec::new());
        }
        last.resize(self.head.gpus, Energy::ZERO);
        last[index] = last[index].max(energy);
        last[index]
    }

    /// Changes the node now. Blocks other writers but not readers.
    ///
    /// # Errors
    /// If the change is refused or the file is read-only.
    pub fn update<T>(
        &self,
        change: impl FnOnce(&mut NodeState, Hardware<'_>, Timestamp) -> Result<T, StateError>,
    ) -> Result<T, NodeError> {
        Ok(self.change(&mut self.cache(), change)?.0)
    }

    fn lock(&self) -> Result<WriteGuard<'_>, NodeError> {
        if !self.shared.writable() {
            return Err(NodeError::ReadOnly { path: self.path.clone() });
        }
        self.shared.lock().map_err(|source| NodeError::Io { path: self.path.clone(), source })
    }

    fn change<T>(
        &self,
        cache: &mut Cache,
        change: impl FnOnce(&mut NodeState, Hardware<'_>, Timestamp) -> Result<T, StateError>,
    ) -> Result<(T, Arc<NodeState>), NodeError> {
        let guard = self.lock()?;
        let at = self.now();
        let mut state = self.load()?.1;
        let dead = self.dead(&state, &cache.own);
        state.release(self.hardware(), at, &dead);
        let before = state.clone();
        let result = change(&mut state, self.hardware(), at);
        if result.is_err() {
            state = before;
        }
        guard.put(self.head.gpus, &layout::state_to_words(&state));
        // Read back, so that this process continues with the state that others see.
        let (sequence, state) = self.load()?;
        drop(guard);
        let state = Arc::new(state);
        cache.state = Some((sequence, Arc::clone(&state)));
        Ok((result?, state))
    }

    /// Writes half of a change, like a process that is killed during a write. For tests; the lock is
    /// held until the returned guard is dropped.
    ///
    /// # Errors
    /// If the file is read-only.
    #[doc(hidden)]
    pub fn write_partially(&self) -> Result<impl Sized, NodeError> {
        let guard = self.lock()?;
        let nonsense = vec![u64::MAX; layout::state_words(self.head.gpus) / 2];
        guard.write_invalid(self.head.gpus, &nonsense);
        Ok(guard)
    }

    /// Claims GPUs for this process until the claim is dropped or the process dies.
    ///
    /// # Errors
    /// If the request is refused or the file is read-only.
    pub fn claim(self: &Arc<Self>, request: &ClaimRequest) -> Result<Tenancy, NodeError> {
        let mut cache = self.cache();
        let file = self.shared.file();
        let own = cache.own.clone();
        let ((slot, serial), _) = self.change(&mut cache, |state, hardware, at| {
            let hold = |slot| !own.contains(&slot) && liveness::lock(file, slot).unwrap_or(false);
            let slot = state.free_slot(hardware, request, hold)?;
            let serial = state.claim(hardware, at, slot, request.clone())?;
            Ok((slot, serial))
        })?;
        cache.own.push(slot);
        drop(cache);
        Ok(Tenancy { node: Arc::clone(self), slot, serial })
    }
}

/// A claim of this process; dropping it releases the GPUs.
#[derive(Debug)]
pub struct Tenancy {
    node: Arc<Node>,
    slot: usize,
    serial: u64,
}

impl Tenancy {
    /// Slot and serial number of the claim.
    #[must_use]
    pub fn key(&self) -> (usize, u64) {
        (self.slot, self.serial)
    }
}

impl Drop for Tenancy {
    fn drop(&mut self) {
        // If this fails, the end of the process has the same effect.
        let slot = self.slot;
        let _ = self.node.update(|state, hardware, at| {
            state.release(hardware, at, &[slot]);
            Ok(())
        });
        let mut cache = self.node.cache();
        cache.own.retain(|own| *own != slot);
        let _ = liveness::unlock(self.node.shared.file(), slot);
    }
}
