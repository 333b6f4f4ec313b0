//! Errors of the server, and the error objects of both protocols. No other file writes an error object.

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use hunch_error::{Error, ErrorCode};
use serde::Serialize;
use serde_json::{Value, json};

/// Protocol that an endpoint speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    OpenAi,
    Anthropic,
}

impl Protocol {
    /// Returns the protocol of a path.
    pub(super) fn of(path: &str) -> Self {
        if path.starts_with("/v1/messages") { Self::Anthropic } else { Self::OpenAi }
    }
}

/// Kind of a failure. Decides the status and the protocol's error type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FailureKind {
    InvalidRequest,
    ContextFull,
    WrongKey,
    Forbidden,
    ModelNotFound,
    NoSuchEndpoint,
    WrongMethod,
    TooSlow,
    TooLarge,
    NotJson,
    QueueFull {
        /// Seconds after which a place is expected to be free.
        retry_after: u64,
    },
    ShuttingDown,
    /// The model does not fit into memory.
    OutOfMemory,
    Internal,
}

/// A refused or failed request.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    pub(super) kind: FailureKind,
    /// Sentence that says what happened and what to do.
    pub(super) message: String,
    /// Parameter at fault.
    pub(super) param: Option<String>,
}

impl Failure {
    pub(super) fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), param: None }
    }

    /// Creates the failure of a parameter.
    pub(super) fn of_param(param: &str, message: impl Into<String>) -> Self {
        Self { kind: FailureKind::InvalidRequest, message: message.into(), param: Some(param.into()) }
    }

    pub(super) fn shutting_down() -> Self {
        Self::new(FailureKind::ShuttingDown, "The server is shutting down. Send the request again later.")
    }

    pub(super) fn status(&self) -> StatusCode {
        match self.kind {
            FailureKind::InvalidRequest | FailureKind::ContextFull => StatusCode::BAD_REQUEST,
            FailureKind::WrongKey => StatusCode::UNAUTHORIZED,
            FailureKind::Forbidden => StatusCode::FORBIDDEN,
            FailureKind::ModelNotFound | FailureKind::NoSuchEndpoint => StatusCode::NOT_FOUND,
            FailureKind::WrongMethod => StatusCode::METHOD_NOT_ALLOWED,
            FailureKind::TooSlow => StatusCode::REQUEST_TIMEOUT,
            FailureKind::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            FailureKind::NotJson => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            FailureKind::QueueFull { .. } => StatusCode::TOO_MANY_REQUESTS,
            FailureKind::ShuttingDown | FailureKind::OutOfMemory => StatusCode::SERVICE_UNAVAILABLE,
            FailureKind::Internal => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    /// Returns the error object of a protocol.
    pub(super) fn body(&self, protocol: Protocol) -> Value {
        match protocol {
            Protocol::OpenAi => json!({ "error": {
                "message": self.message,
                "type": self.openai_type(),
                "param": self.param,
                "code": self.openai_code(),
            } }),
            Protocol::Anthropic => json!({
                "type": "error",
                "error": { "type": self.anthropic_type(), "message": self.message },
            }),
        }
    }

    /// Returns the error within a response of OpenAI that failed.
    pub(super) fn of_response(&self) -> Value {
        let code = self.openai_code().unwrap_or(match self.openai_type() {
            "server_error" => "server_error",
            _ => "invalid_prompt",
        });
        json!({ "code": code, "message": self.message })
    }

    /// Returns the response of a protocol.
    pub(super) fn response(&self, protocol: Protocol) -> Response {
        let mut response = json_response(self.status(), &self.body(protocol));
        if let FailureKind::QueueFull { retry_after } = self.kind {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(retry_after));
        }
        response
    }

    fn openai_type(&self) -> &'static str {
        match self.kind {
            FailureKind::QueueFull { .. } => "rate_limit_error",
            FailureKind::ShuttingDown | FailureKind::OutOfMemory | FailureKind::Internal => "server_error",
            _ => "invalid_request_error",
        }
    }

    fn openai_code(&self) -> Option<&'static str> {
        match self.kind {
            FailureKind::ContextFull => Some("context_length_exceeded"),
            FailureKind::WrongKey => Some("invalid_api_key"),
            FailureKind::ModelNotFound => Some("model_not_found"),
            FailureKind::NoSuchEndpoint => Some("unknown_url"),
            FailureKind::QueueFull { .. } => Some("rate_limit_exceeded"),
            _ => None,
        }
    }

    fn anthropic_type(&self) -> &'static str {
        match self.kind {
            FailureKind::WrongKey => "authentication_error",
            FailureKind::Forbidden => "permission_error",
            FailureKind::ModelNotFound | FailureKind::NoSuchEndpoint => "not_found_error",
            FailureKind::TooLarge => "request_too_large",
            FailureKind::QueueFull { .. } => "rate_limit_error",
            FailureKind::ShuttingDown => "overloaded_error",
            FailureKind::TooSlow => "timeout_error",
            FailureKind::OutOfMemory | FailureKind::Internal => "api_error",
            FailureKind::InvalidRequest
            | FailureKind::ContextFull
            | FailureKind::WrongMethod
            | FailureKind::NotJson => "invalid_request_error",
        }
    }
}

impl From<&Error> for Failure {
    fn from(error: &Error) -> Self {
        let kind = match error.code() {
            ErrorCode::InvalidRequest => FailureKind::InvalidRequest,
            ErrorCode::ContextOverflow => FailureKind::ContextFull,
            ErrorCode::OutOfMemory => FailureKind::OutOfMemory,
            ErrorCode::NoModel | ErrorCode::Busy | ErrorCode::Stopped => FailureKind::ShuttingDown,
            _ => FailureKind::Internal,
        };
        Self::new(kind, error.to_string())
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::from(&error)
    }
}

/// Returns a response with a JSON body.
pub(super) fn json_response(status: StatusCode, body: &impl Serialize) -> Response {
    let text = serde_json::to_vec(body).unwrap_or_default();
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}
