# A small program that plays worker and driver for the tests of the plumbing: it holds no model, so that it starts at once
# and its memory is its own.
add_executable(worker_stub bisect/worker_stub.cpp
               ${CMAKE_SOURCE_DIR}/src/bisect/code_lines.cpp
               ${CMAKE_SOURCE_DIR}/src/bisect/core_dump.cpp
               ${CMAKE_SOURCE_DIR}/src/bisect/core_dump_report.cpp
               ${CMAKE_SOURCE_DIR}/src/bisect/pool.cpp
               ${CMAKE_SOURCE_DIR}/src/bisect/progress.cpp
               ${CMAKE_SOURCE_DIR}/src/bisect/protocol.cpp
               ${CMAKE_SOURCE_DIR}/src/bisect/worker_channel.cpp
               ${CMAKE_SOURCE_DIR}/src/bisect/worker_death.cpp)
target_link_libraries(worker_stub PRIVATE faultline_base)
target_sources(worker_stub PRIVATE $<TARGET_OBJECTS:faultline_base>)
if(TARGET bisect_test)
  target_compile_definitions(bisect_test PRIVATE FAULTLINE_WORKER_STUB="$<TARGET_FILE:worker_stub>")
  add_dependencies(bisect_test worker_stub)
endif()
if(FAULTLINE_HAVE_CUDA)
  add_executable(weights_stub bisect/weights_stub.cpp bisect/touch_memory.cu)
  target_link_libraries(weights_stub PRIVATE faultline_all)
  target_include_directories(weights_stub PRIVATE ${CMAKE_CURRENT_SOURCE_DIR})
  if(TARGET bisect_test)
    target_compile_definitions(bisect_test PRIVATE FAULTLINE_WEIGHTS_STUB="$<TARGET_FILE:weights_stub>")
    add_dependencies(bisect_test weights_stub)
  endif()
endif()
