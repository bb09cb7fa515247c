// SPDX-License-Identifier: Apache-2.0
#include "deltaport/core/enqueue.hpp"

#include "deltaport/core/error.hpp"

namespace deltaport {
namespace {
thread_local Recorder* current_recorder = nullptr;
thread_local int inputs_hidden = 0;
}  // namespace

Recorder* recorder() {
  return current_recorder;
}

RecordingScope::RecordingScope(Recorder& recorder) {
  DELTAPORT_VALIDATE(current_recorder == nullptr, CaptureError, "a capture was begun inside a capture");
  current_recorder = &recorder;
}

RecordingScope::~RecordingScope() {
  current_recorder = nullptr;
}

bool host_may_read_inputs() {
  return inputs_hidden == 0;
}
InputsHidden::InputsHidden() {
  ++inputs_hidden;
}
InputsHidden::~InputsHidden() {
  --inputs_hidden;
}

void require_not_recording(const char* operation, const char* why) {
  DELTAPORT_VALIDATE(current_recorder == nullptr, CaptureError, "'", operation,
                     "' cannot be captured: ", why);
}

}  // namespace deltaport
