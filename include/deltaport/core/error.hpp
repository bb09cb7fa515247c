// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace deltaport {

/// Exit codes of the `deltaport` executable; each Error carries the one it ends with.
enum class ExitCode : int {
  success = 0,
  failure = 1,     ///< anything not named below
  bad_input = 2,   ///< configuration, command line, tensors or files the user gave
  non_finite = 3,  ///< loss or gradient norm became NaN or infinite
  data = 4,        ///< token files missing, damaged or unfit for the model
  checkpoint = 5,  ///< no usable checkpoint, or one that could not be written
  comm = 6,        ///< communication between ranks failed
  requeue = 85,    ///< stopped by a signal after writing a checkpoint; start the same command again
};

/// Base of every exception that deltaport throws. `what()` says what happened, where, and what to do.
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message, ExitCode code = ExitCode::failure)
      : std::runtime_error(message), code_(code) {}
  ExitCode exit_code() const noexcept { return code_; }

 private:
  ExitCode code_;
};

/// Wrong configuration; the text holds file:line:column where there is one.
struct ConfigError : Error {
  explicit ConfigError(const std::string& m) : Error(m, ExitCode::bad_input) {}
};
/// An argument with the wrong shape, dtype or layout; the text names the argument.
struct ShapeError : Error {
  explicit ShapeError(const std::string& m) : Error(m, ExitCode::bad_input) {}
};
/// A file the user gave cannot be used; the text names file and offset.
struct DataError : Error {
  explicit DataError(const std::string& m) : Error(m, ExitCode::data) {}
};
struct CheckpointError : Error {
  explicit CheckpointError(const std::string& m) : Error(m, ExitCode::checkpoint) {}
};
struct CommError : Error {
  explicit CommError(const std::string& m) : Error(m, ExitCode::comm) {}
};
struct NonFiniteError : Error {
  explicit NonFiniteError(const std::string& m) : Error(m, ExitCode::non_finite) {}
};
struct DeviceError : Error {
  explicit DeviceError(const std::string& m) : Error(m) {}
};
/// Work that cannot be captured, or a captured graph used for other work than it was made of; the text names segment
/// and operation.
struct CaptureError : Error {
  explicit CaptureError(const std::string& m) : Error(m) {}
};
/// The arena or the host could not give the memory; the text has requested, live and reserved bytes.
struct OutOfMemory : Error {
  explicit OutOfMemory(const std::string& m) : Error(m) {}
};

/// Streams all arguments into one string.
template <class... Args>
std::string concat(const Args&... args) {
  std::ostringstream out;
  (out << ... << args);
  return out.str();
}

}  // namespace deltaport

/// Always on. Throws ErrorType with the concatenated message when `condition` does not hold.
#define DELTAPORT_VALIDATE(condition, ErrorType, ...)                    \
  do {                                                                   \
    if (!(condition)) throw ErrorType(::deltaport::concat(__VA_ARGS__)); \
  } while (false)

/// Internal contract, checked only without NDEBUG.
#ifdef NDEBUG
#define DELTAPORT_EXPECT(condition) \
  do {                              \
  } while (false)
#else
#define DELTAPORT_EXPECT(condition) \
  DELTAPORT_VALIDATE(condition, ::deltaport::Error, __FILE__, ":", __LINE__, ": contract broken: " #condition)
#endif
