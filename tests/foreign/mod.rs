//! Numbers that other programs and papers publish, retyped, with their origin.

mod agreement;
