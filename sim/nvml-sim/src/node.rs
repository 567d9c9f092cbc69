//! A simulated node as a process holds it: open, look, change.
//!
//! Time is the wall clock, scaled by the clock in the node's own file. Each look first sees whether
//! the processes on the cards still exist; one that has died is taken off at the instant this is
//! noticed. So a death that nobody looks at costs load until the next look of any process (a
//! driver call, a tenant's own tick), or [`LOOK_US`] later where looks come faster than that.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::UNIX_EPOCH;

use wattle_common::time::TimeScale;
use wattle_common::topology::GPUS_PER_NODE_MAX;
use wattle_common::{Energy, NodeId, Timestamp};
use wattle_world::{GpuModel, World};

use crate::alive;
use crate::layout::{self, Head, LayoutError};
use crate::shared::{Shared, WriteGuard};
use crate::state::{ClaimRequest, NodeState, Physics, StateError};

/// How long (wall, microseconds) the tenants of a node are believed to be alive after a look.
/// Asking the kernel costs a system call for each; a profiler makes hundreds of calls in one go.
pub const LOOK_US: u64 = 2_000;

/// Why a node cannot be had, or not be changed.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// No such file.
    #[error("{0}: no such node; make one with: wattle-simnode create --state {0}", path.display())]
    Missing {
        /// The file that was looked for.
        path: PathBuf,
    },
    /// There is one already.
    #[error("{0}: is already there; remove it first, or choose another name", path.display())]
    Exists {
        /// The file that stands in the way.
        path: PathBuf,
    },
    /// It is not the state of a node, or of another release.
    #[error("{0}: {reason}", path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
        /// Whether another release wrote it.
        other_version: bool,
    },
    /// A kind of card that the catalog does not have.
    #[error("the catalog has no GPU `{kind}`; it has {known}")]
    UnknownKind {
        /// What was asked for.
        kind: String,
        /// What there is.
        known: String,
    },
    /// An impossible number of cards.
    #[error("a node has 1 to {GPUS_PER_NODE_MAX} GPUs, not {0}")]
    Count(u32),
    /// The file may only be read.
    #[error("{0}: may not be written by this user", path.display())]
    ReadOnly {
        /// The file.
        path: PathBuf,
    },
    /// The system refuses.
    #[error("{0}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// The node is well, and says no.
    #[error(transparent)]
    Refused(#[from] StateError),
}

/// What a new node is to be.
#[derive(Clone, Debug)]
pub struct NodeSpec {
    /// Its id.
    pub node: NodeId,
    /// How many cards.
    pub gpus: u32,
    /// Their kind, as in the catalog.
    pub kind: String,
    /// How its time follows the wall's.
    pub clock: TimeScale,
}

/// The wall clock, in microseconds since the Unix epoch.
#[must_use]
#[expect(
    clippy::disallowed_methods,
    reason = "the simulated driver keeps its own time, as a real one does"
)]
pub fn wall_us() -> u64 {
    let since = std::time::SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

/// The catalog, read once in a process.
pub fn world() -> &'static World {
    static WORLD: OnceLock<World> = OnceLock::new();
    WORLD.get_or_init(World::builtin)
}

/// What a look at a node shows: its state, and the instant of the look.
#[derive(Clone, Debug)]
pub struct View {
    /// The state as of its last event.
    pub state: Arc<NodeState>,
    /// Now, in the system's time.
    pub at: Timestamp,
}

#[derive(Debug, Default)]
struct Known {
    /// The last state that was read, and its sequence.
    state: Option<(u64, Arc<NodeState>)>,
    /// When the tenants were last seen alive (wall).
    looked_us: u64,
    /// What each card's energy counter showed last.
    shown: Vec<Energy>,
    /// Places of claims that this very handle holds.
    own: Vec<usize>,
}

/// An open node.
#[derive(Debug)]
pub struct Node {
    path: PathBuf,
    shared: Shared,
    head: Head,
    gpu: &'static GpuModel,
    known: Mutex<Known>,
}

fn kind_of(kind: &str) -> Result<&'static GpuModel, NodeError> {
    world().gpu(kind).ok_or_else(|| NodeError::UnknownKind {
        kind: kind.to_owned(),
        known: world().gpus().map(|gpu| gpu.gpu_type.clone()).collect::<Vec<_>>().join(", "),
    })
}

impl Node {
    /// Makes a node's file. It appears whole or not at all.
    ///
    /// # Errors
    /// Where the file is there already, or the catalog does not have the kind.
    pub fn create(path: &Path, spec: &NodeSpec) -> Result<(), NodeError> {
        let gpu = kind_of(&spec.kind)?;
        if spec.gpus == 0 || spec.gpus > GPUS_PER_NODE_MAX {
            return Err(NodeError::Count(spec.gpus));
        }
        let gpus = spec.gpus as usize;
        let head =
            Head { clock: spec.clock, node: spec.node.clone(), kind: spec.kind.clone(), gpus };
        let physics = Physics { world: world(), gpu };
        let state = NodeState::new(physics, gpus, spec.clock.system(wall_us()));
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
            // Unlike a rename, a link never replaces a node that others have mapped.
            .and_then(|()| std::fs::hard_link(&draft, path));
        let _ = std::fs::remove_file(&draft);
        match written {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                Err(NodeError::Exists { path: path.to_owned() })
            }
            other => other.map_err(failed),
        }
    }

    /// Opens a node's file; only for looking where writing is not permitted.
    ///
    /// # Errors
    /// Says what is wrong with the file, and what to do.
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
            return Err(unusable("the state is cut short; create the node anew".to_owned(), false));
        }
        let gpu = kind_of(&head.kind)?;
        let node = Self { path: path.to_owned(), shared, head, gpu, known: Mutex::default() };
        node.look()?;
        Ok(node)
    }

    /// Its id.
    #[must_use]
    pub fn id(&self) -> &NodeId {
        &self.head.node
    }
    /// How many cards it has.
    #[must_use]
    pub fn gpu_count(&self) -> u32 {
        self.head.gpus as u32
    }
    /// Its kind of card.
    #[must_use]
    pub fn gpu(&self) -> &'static GpuModel {
        self.gpu
    }
    /// How its time follows the wall's.
    #[must_use]
    pub fn clock(&self) -> TimeScale {
        self.head.clock
    }
    /// Where its file is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
    /// The system's time.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.head.clock.system(wall_us())
    }

    fn physics(&self) -> Physics<'static> {
        Physics { world: world(), gpu: self.gpu }
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        // What is cached is either whole or absent, so a panic elsewhere has not broken it.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn load(&self) -> Result<(u64, NodeState), NodeError> {
        let (sequence, words) = self.shared.get(self.head.gpus);
        let state = layout::state_from_words(&words, self.head.gpus).map_err(|error| {
            let (path, reason) = (self.path.clone(), error.to_string());
            NodeError::Unusable { path, reason, other_version: false }
        })?;
        Ok((sequence, state))
    }

    /// Claims whose process has died.
    fn dead(&self, state: &NodeState, own: &[usize]) -> Vec<usize> {
        let file = self.shared.file();
        let is_dead = |place: &usize| {
            state.claims[*place].is_some()
                && !own.contains(place)
                // Where the kernel will not say, the process counts as alive.
                && !alive::is_held(file, *place).unwrap_or(true)
        };
        (0..state.claims.len()).filter(is_dead).collect()
    }

    /// Looks at the node, now.
    ///
    /// # Errors
    /// Where its file has been spoilt.
    pub fn look(&self) -> Result<View, NodeError> {
        let mut known = self.known();
        let wall = wall_us();
        let at = self.head.clock.system(wall);
        let sequence = self.shared.sequence();
        let fresh = known.state.as_ref().is_some_and(|(seen, _)| *seen == sequence);
        if !fresh {
            let (sequence, state) = self.load()?;
            known.state = Some((sequence, Arc::new(state)));
            known.looked_us = 0;
        }
        let (sequence, mut state) = known.state.clone().expect("it was read just now");
        if wall.abs_diff(known.looked_us) >= LOOK_US {
            known.looked_us = wall;
            let dead = self.dead(&state, &known.own);
            if !dead.is_empty() {
                if self.shared.writable() {
                    state = self.change(&mut known, |_, _, _| Ok(()))?.1;
                } else {
                    let mut changed = NodeState::clone(&state);
                    changed.release(self.physics(), at, &dead);
                    state = Arc::new(changed);
                    known.state = Some((sequence, Arc::clone(&state)));
                }
            }
        }
        // Read after the state: the event that made it is never in this look's future.
        let at = self.now().max(state.settled_at);
        Ok(View { state, at })
    }

    /// What a card's energy counter shows, and never less than it has shown this process before.
    ///
    /// A look between the instant of an event and its being written still counts the old power
    /// for that moment (microseconds); the next one would find a little less.
    #[must_use]
    pub fn energy_shown(&self, view: &View, index: usize) -> Energy {
        let energy = view.state.energy_shown(&view.state.cards[index], view.at);
        let mut known = self.known();
        known.shown.resize(self.head.gpus, Energy::ZERO);
        known.shown[index] = known.shown[index].max(energy);
        known.shown[index]
    }

    /// Changes the node, now; other writers wait meanwhile, readers do not.
    ///
    /// # Errors
    /// Where the change is refused, or the file may not be written.
    pub fn update<T>(
        &self,
        change: impl FnOnce(&mut NodeState, Physics<'_>, Timestamp) -> Result<T, StateError>,
    ) -> Result<T, NodeError> {
        Ok(self.change(&mut self.known(), change)?.0)
    }

    fn lock(&self) -> Result<WriteGuard<'_>, NodeError> {
        if !self.shared.writable() {
            return Err(NodeError::ReadOnly { path: self.path.clone() });
        }
        self.shared.lock().map_err(|source| NodeError::Io { path: self.path.clone(), source })
    }

    fn change<T>(
        &self,
        known: &mut Known,
        change: impl FnOnce(&mut NodeState, Physics<'_>, Timestamp) -> Result<T, StateError>,
    ) -> Result<(T, Arc<NodeState>), NodeError> {
        let guard = self.lock()?;
        let at = self.now();
        let mut state = self.load()?.1;
        let dead = self.dead(&state, &known.own);
        state.release(self.physics(), at, &dead);
        let before = state.clone();
        let result = change(&mut state, self.physics(), at);
        if result.is_err() {
            state = before;
        }
        guard.put(self.head.gpus, &layout::state_to_words(&state));
        // Read back, so that what this process goes on with is what the others see.
        let (sequence, state) = self.load()?;
        drop(guard);
        let state = Arc::new(state);
        known.state = Some((sequence, Arc::clone(&state)));
        Ok((result?, state))
    }

    /// Writes half of a change and stops there, as a process does that is killed in the middle.
    /// For tests of exactly that; the lock is held until the returned guard is dropped.
    ///
    /// # Errors
    /// Where the file may not be written.
    #[doc(hidden)]
    pub fn half_written(&self) -> Result<impl Sized, NodeError> {
        let guard = self.lock()?;
        let nonsense = vec![u64::MAX; layout::state_words(self.head.gpus) / 2];
        guard.write_invalid(self.head.gpus, &nonsense);
        Ok(guard)
    }

    /// Lets this process onto cards, until the claim is dropped or the process dies.
    ///
    /// # Errors
    /// Where there is no room, or no such card or workload.
    pub fn claim(self: &Arc<Self>, request: &ClaimRequest) -> Result<Tenancy, NodeError> {
        let mut known = self.known();
        let file = self.shared.file();
        let own = known.own.clone();
        let ((place, serial), _) = self.change(&mut known, |state, physics, at| {
            let hold = |place| !own.contains(&place) && alive::hold(file, place).unwrap_or(false);
            let place = state.place_for(physics, request, hold)?;
            let serial = state.claim(physics, at, place, request.clone())?;
            Ok((place, serial))
        })?;
        known.own.push(place);
        drop(known);
        Ok(Tenancy { node: Arc::clone(self), place, serial })
    }
}

/// A claim that this process holds; dropping it leaves the cards.
#[derive(Debug)]
pub struct Tenancy {
    node: Arc<Node>,
    place: usize,
    serial: u64,
}

impl Tenancy {
    /// Where the claim is in the node's state, and its serial.
    #[must_use]
    pub fn key(&self) -> (usize, u64) {
        (self.place, self.serial)
    }
}

impl Drop for Tenancy {
    fn drop(&mut self) {
        // Should this fail, the process's end does the same.
        let place = self.place;
        let _ = self.node.update(|state, physics, at| {
            state.release(physics, at, &[place]);
            Ok(())
        });
        let mut known = self.node.known();
        known.own.retain(|own| *own != place);
        let _ = alive::let_go(self.node.shared.file(), place);
    }
}
