// The ladder's wire form.
#ifndef WORKER_LADDER_PROTO_LADDER_PROTO_H_
#define WORKER_LADDER_PROTO_LADDER_PROTO_H_

#include "offload/engine/ladder.h"
#include "proto/strata/v1/fleet.pb.h"

namespace strata {

inline v1::Rung ToProto(const Rung& rung) {
  v1::Rung message;
  message.set_rung(FeatureName(rung.feature));
  message.set_chosen(rung.chosen);
  message.set_why(rung.why);
  return message;
}

}  // namespace strata

#endif  // WORKER_LADDER_PROTO_LADDER_PROTO_H_
