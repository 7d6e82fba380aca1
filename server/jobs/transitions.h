// The state machine: which state may follow which. Everything that is not in these tables is refused.
//
//   Job      PENDING -> RUNNING        an attempt was assigned, or a lost one came back
//            PENDING -> CANCELLED      cancel, no attempt holds devices
//            PENDING -> CANCELLING     cancel, its attempt is LOST and still holds devices
//            PENDING -> FAILED         a worker found the spec or the data bad
//            RUNNING -> PENDING        the attempt was lost, or ended and is to be tried again
//            RUNNING -> CANCELLING     cancel
//            RUNNING -> SUCCEEDED, FAILED
//            CANCELLING -> CANCELLED   the attempt ended
//            CANCELLING -> SUCCEEDED   the attempt was done before it could stop
//
//   Attempt  ASSIGNED -> RUNNING -> STOPPING; each of them -> LOST, SUCCEEDED, FAILED, CANCELLED; ASSIGNED ->
//   STOPPING
//            LOST -> RUNNING, STOPPING  its worker is back and has it
//            LOST -> FAILED             its worker is back without it
//            LOST -> FENCED             given up
//
// A state is written to the store before anybody is told of it, and before the worker is told to act on it.
#pragma once

#include "proto/coat/v1/types.pb.h"

namespace coat::jobs {

bool may_follow(v1::Job::State from, v1::Job::State to);
bool may_follow(v1::Attempt::State from, v1::Attempt::State to);

// Sets the state. Throws std::logic_error where the table has no such transition.
void move(v1::Job& job, v1::Job::State to);
void move(v1::Attempt& attempt, v1::Attempt::State to);

}  // namespace coat::jobs
