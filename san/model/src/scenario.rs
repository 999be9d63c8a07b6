//! The bounds that the tests search. All of it at once is too much for one search, so each of these lets a
//! few things happen, to the end; only [`everything`] is cut off at a depth.

use crate::protocol::Bounds;
use crate::state::Left;

const NOTHING: Left = Left { writes: 0, reads: 0, crashes: 0, takeovers: 0, departures: 0, returns: 0 };

/// Two takeovers over three replicas: one after the other, or one within the other.
pub const TAKEOVERS: Bounds = Bounds {
    replicas: 3,
    owners: 2,
    blocks: 1,
    left: Left { writes: 1, takeovers: 2, ..NOTHING },
    depth: None,
};

/// One takeover over three replicas, with writes to both blocks.
pub const BLOCKS: Bounds = Bounds {
    replicas: 3,
    owners: 2,
    blocks: 2,
    left: Left { writes: 2, takeovers: 1, ..NOTHING },
    depth: None,
};

/// Two takeovers, and two writes of one block.
pub const OVERWRITES: Bounds = Bounds {
    replicas: 2,
    owners: 2,
    blocks: 1,
    left: Left { writes: 2, takeovers: 2, ..NOTHING },
    depth: None,
};

/// A read, while nodes die and take over.
pub const READS: Bounds = Bounds {
    replicas: 2,
    owners: 2,
    blocks: 1,
    left: Left { writes: 1, reads: 1, crashes: 1, takeovers: 1, ..NOTHING },
    depth: None,
};

/// A member departs and comes back, while the volume is taken over.
pub const RETURN: Bounds = Bounds {
    replicas: 2,
    owners: 2,
    blocks: 1,
    left: Left { writes: 1, takeovers: 1, departures: 1, returns: 1, ..NOTHING },
    depth: None,
};

/// A member departs and comes back, while nodes die.
pub const RETURN_AND_CRASH: Bounds = Bounds {
    replicas: 2,
    owners: 2,
    blocks: 1,
    left: Left { writes: 2, crashes: 1, departures: 1, returns: 1, ..NOTHING },
    depth: None,
};

/// A member departs, and comes back in a second session, the first one being broken off.
pub const SESSIONS: Bounds = Bounds {
    replicas: 2,
    owners: 2,
    blocks: 1,
    left: Left { writes: 2, departures: 1, returns: 2, ..NOTHING },
    depth: None,
};

/// All that the model knows, over three replicas and two blocks, as deep as asked for.
pub const fn everything(depth: usize) -> Bounds {
    let left = Left { writes: 2, reads: 1, crashes: 1, takeovers: 2, departures: 1, returns: 1 };
    Bounds { replicas: 3, owners: 2, blocks: 2, left, depth: Some(depth) }
}
