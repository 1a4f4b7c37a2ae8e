/* SPDX-License-Identifier: Apache-2.0 */
#pragma once
#include <stddef.h>

#include "perf_record.h"

#include "drain.cdef"
