//! What tests of steps share.
