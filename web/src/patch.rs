//! The difference of two JSON values as a merge patch (RFC 7396).
//!
//! A viewer has the state of its page and receives what has changed. Members of objects are compared one
//! by one; every other value is replaced as a whole. Pages therefore keep lists as objects with a key for
//! each entry, and no member has the value null, which stands for a removed one.

use serde_json::{Map, Value};

/// What turns `old` into `new`; `None` if they are equal.
#[must_use]
pub fn patch(old: &Value, new: &Value) -> Option<Value> {
    let (Value::Object(old), Value::Object(new)) = (old, new) else {
        return (old != new).then(|| new.clone());
    };
    let mut changes = Map::new();
    for (key, value) in new {
        match old.get(key) {
            Some(before) => {
                changes.extend(patch(before, value).map(|change| (key.clone(), change)));
            }
            None => drop(changes.insert(key.clone(), value.clone())),
        }
    }
    for key in old.keys().filter(|key| !new.contains_key(*key)) {
        changes.insert(key.clone(), Value::Null);
    }
    (!changes.is_empty()).then_some(Value::Object(changes))
}

/// The value without members that are null.
#[must_use]
pub fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(members) => Value::Object(
            members
                .into_iter()
                .filter(|(_, member)| !member.is_null())
                .map(|(key, member)| (key, without_nulls(member)))
                .collect(),
        ),
        Value::Array(items) => Value::Array(items.into_iter().map(without_nulls).collect()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The rule of the standard, as the page applies it.
    fn apply(target: &mut Value, change: &Value) {
        let Value::Object(changes) = change else {
            *target = change.clone();
            return;
        };
        if !target.is_object() {
            *target = json!({});
        }
        let members = target.as_object_mut().unwrap();
        for (key, value) in changes {
            if value.is_null() {
                members.remove(key);
            } else {
                apply(members.entry(key.clone()).or_insert(Value::Null), value);
            }
        }
    }

    #[test]
    fn patch_turns_the_old_value_into_the_new_one() {
        let states = [
            json!({}),
            json!({"a": 1, "rows": {"x": {"w": 1, "p": "queued"}, "y": {"w": 2}}}),
            json!({"a": 1, "rows": {"x": {"w": 3, "p": "queued"}, "z": {"w": [1, 2]}}}),
            json!({"rows": {"z": {"w": [1]}}}),
            json!({"rows": 7}),
        ];
        for old in &states {
            for new in &states {
                let mut value = old.clone();
                match patch(old, new) {
                    Some(change) => apply(&mut value, &change),
                    None => assert_eq!(old, new),
                }
                assert_eq!(&value, new, "{old} to {new}");
            }
        }
        let change = patch(&states[1], &states[2]).unwrap();
        let expected = json!({"rows": {"x": {"w": 3}, "y": null, "z": {"w": [1, 2]}}});
        assert_eq!(change, expected, "unchanged members are absent");
    }

    #[test]
    fn null_members_are_left_out() {
        let value = json!({"a": null, "b": {"c": null, "d": 1}, "e": [{"f": null}]});
        assert_eq!(without_nulls(value), json!({"b": {"d": 1}, "e": [{}]}));
    }
}
